"""What the demo's agent is made of: copied beside the demo's store, so that it can be played with."""
