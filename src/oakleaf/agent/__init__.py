"""Running an agent: the loop, its tools, its limits, its events."""
