"""Oakleaf below other agent frameworks. Each package is imported by its own name and needs the extra of that name."""
