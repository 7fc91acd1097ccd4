"""Compare the cost of Oakleaf with the bare driver in one run. `python -m bench` prints and saves the figures."""
