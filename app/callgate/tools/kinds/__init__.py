"""One package for each kind of tool.

Read `settings` first. For users: `docs/tools.md`.
"""
