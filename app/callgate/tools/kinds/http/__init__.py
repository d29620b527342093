"""Tools that are HTTP endpoints.

Read `endpoint` first. For users: `docs/tools.md`.
"""
