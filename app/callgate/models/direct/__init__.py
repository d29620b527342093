"""The direct lane: models behind an OpenAI-compatible HTTP API.

Read `model` first.
"""
