"""An MCP server that lets other agents read past sessions: search, sessions, show, tree, usage and diff."""
