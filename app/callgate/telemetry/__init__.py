"""Logs and metrics, written by listeners to the events of chats.

Read `listeners` first. For users: `docs/metrics.md`.
"""
