"""Where an agent runs."""
