"""What Bough costs beside the bare driver, measured in one run. `python -m bench` prints and keeps it."""
