"""`bough chat`."""
