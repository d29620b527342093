"""Anthropic's Messages API: a reader of its requests and writers of its answers.

Read `face` first. For users: `docs/messages.md`.
"""
