"""Callgate as an MCP server: `/mcp`, where any MCP client lists and calls the tools that its key may use.

Stateless at every revision of the protocol, and imported with the first request.

Read `server` first. For users: `docs/mcp-server.md`.
"""
