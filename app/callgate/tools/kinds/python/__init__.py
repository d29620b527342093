"""Tools that are Python functions.

Read `function` first. For users: `docs/python-tools.md`.
"""
