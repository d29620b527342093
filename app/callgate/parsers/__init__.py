"""Child processes with limits, which read what others wrote where reading it may end or hold a process.

Read `pool` first. For users: `docs/operating.md`.
"""
