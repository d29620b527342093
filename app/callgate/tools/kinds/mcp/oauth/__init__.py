"""Logs in to MCP servers by OAuth 2.1, keeps the tokens, and renews them.

Read `source` first. For users: `docs/mcp.md`.
"""
