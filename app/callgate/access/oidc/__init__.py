"""Signing in by the company's issuer: who shows one of its tokens is a caller with the rights of a group.

Read `people` first. For users: `docs/oidc.md`.
"""
