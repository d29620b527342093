"""Records runs: a row for each request, its events, and its texts where the config keeps them; lists, replays and
exports them.

Read `recorder` first. For users: `docs/runs.md`.
"""
