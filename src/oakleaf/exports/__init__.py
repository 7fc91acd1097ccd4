"""What a session is written out as, for people and for other tools."""
