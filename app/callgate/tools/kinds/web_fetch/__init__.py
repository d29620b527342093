"""A tool that fetches a page of the web, and returns what it says.

Read `fetch` first. For users: `docs/hosted-tools.md`.
"""
