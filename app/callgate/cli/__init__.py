"""The command line: what belongs to no other subject. `callgate.commands` registers all commands.

Read `serving` first. For users: `docs/quickstart.md`.
"""
