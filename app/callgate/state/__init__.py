"""What outlives a request, as contracts: the ledger of calls and runs, stores of turns and responses.

Read `entry` first. For users: `docs/scaling.md`.
"""
