"""Runs that outlive a connection or a process: with an `Idempotency-Key`, durable, and in the background.

Read `durable_runs` first. For users: `docs/scaling.md`.
"""
