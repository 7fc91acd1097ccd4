"""Run a recorded session again without effects, and report the differences."""
