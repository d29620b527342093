"""Who may do what and how much of it: keys, rate limits, budgets.

Read `keys` first. For users: `docs/operating.md`.
"""
