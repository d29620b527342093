"""Runs tools on workers on other machines, through Redis.

Read `fleet` first. For users: `docs/scaling.md`.
"""
