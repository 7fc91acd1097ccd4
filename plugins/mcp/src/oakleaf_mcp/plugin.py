"""What this plugin adds, in words; imported for `oakleaf --help` alone."""

COMMANDS = {"mcp": ("Look", "Let other agents read past sessions: an MCP server.")}
