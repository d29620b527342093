"""Models: which lane reaches a provider, how a request is sent, how an answer is read into events, retries and
fallbacks. The only package that imports litellm.

Read `catalogue` first. For users: `docs/providers.md`.
"""
