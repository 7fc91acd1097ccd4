"""Running an agent: the loop, tools, limits, events."""
