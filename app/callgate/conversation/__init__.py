"""The loop that asks a model, has its calls run and asks again; its events, turns and history. Pure: no I/O, no
settings, no logging.

Read `loop` first. For users: `docs/finish-reasons.md`.
"""
