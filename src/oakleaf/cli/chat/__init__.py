"""`oakleaf chat`."""
