"""`oakleaf demo`."""
