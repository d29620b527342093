"""The Chat Completions API: what is special to it.

Read `face` first. For users: `docs/openai-api.md`.
"""
