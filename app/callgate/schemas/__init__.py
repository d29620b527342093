"""JSON Schemas of tools in the dialect that each provider takes.

Read `dialects` first. For users: `docs/providers.md`.
"""
