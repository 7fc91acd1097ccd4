"""Tools: what a tool is, and the workspace tools that ship with Oakleaf."""
