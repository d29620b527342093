"""Calls that models write as text: the prompts that ask for them, and the readers of 46 formats. Pure.

Read `reader` first. For users: `docs/text-calls.md`.
"""
