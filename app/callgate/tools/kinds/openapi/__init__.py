"""Tools from OpenAPI documents.

Read `source` first. For users: `docs/tools.md`.
"""
