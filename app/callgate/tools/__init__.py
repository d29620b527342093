"""Tools: executors of every kind, the registry of all tools, approvals, MCP clients."""
