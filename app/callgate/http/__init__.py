"""Our HTTP client, for models, MCP servers and webhooks, and the reader of server-sent events.

Read `client` first.
"""
