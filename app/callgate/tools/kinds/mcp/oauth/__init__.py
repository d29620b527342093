"""Logs in to MCP servers by OAuth 2.1, keeps the tokens, and renews them.

Read `settings` first. For users: `docs/mcp.md`.
"""
