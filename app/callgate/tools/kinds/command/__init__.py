"""Tools that are commands.

Read `command` first. For users: `docs/tools.md`.
"""
