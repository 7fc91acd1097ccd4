"""What Acme adds to Oakleaf. Each module is one plugin; the entry points are in pyproject.toml."""
