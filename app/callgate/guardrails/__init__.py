"""Guardrails: hooks that look at requests, answers, calls and results, and let them pass, mask them or block them.

Read `hook` first. For users: `docs/guardrails.md`.
"""
