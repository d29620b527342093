"""A tool that searches the web, by an engine of the operator's choice.

Read `search` first. For users: `docs/hosted-tools.md`.
"""
