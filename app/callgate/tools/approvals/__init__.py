"""Calls that wait for a person's approval.

Read `queue` first. For users: `docs/approvals.md`.
"""
