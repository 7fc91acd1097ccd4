"""`bough demo`."""
