"""What a request may name, decided in one place for every API and route: models, tools, addresses, the operator's own. Pure.

Read `judge` first. For users: `docs/security.md`.
"""
