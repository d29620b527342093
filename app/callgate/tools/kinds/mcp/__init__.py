"""Tools of MCP servers.

Read `server` first. For users: `docs/mcp.md`.
"""
