"""Tools of MCP servers: `oakleaf.mcp(…)` names one, a run connects to it."""
