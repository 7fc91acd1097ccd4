"""Tools: the type of a tool, the sources of tools, and the processes of commands."""
