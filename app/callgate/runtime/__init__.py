"""All objects built from one reading of the config, and the switch to the next on a reload.

Read `runtime` first. For users: `docs/reload.md`.
"""
