"""Tools that clients declare for a provider to run (`web_search`, `code_interpreter`, …), and that tools of the config stand for.

Read `rows` first. For users: `docs/hosted-tools.md`.
"""
