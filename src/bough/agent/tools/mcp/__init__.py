"""Tools of MCP servers: `bough.mcp(…)` names one, a run connects to it."""
