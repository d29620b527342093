"""The command line: what belongs to no other subject. `callgate.__main__` registers the commands.

Read `serving` first. For users: `docs/quickstart.md`.
"""
