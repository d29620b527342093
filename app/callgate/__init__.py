"""Callgate: an OpenAI-compatible HTTP proxy that runs your tools, and never runs half a call."""

__version__ = "0.1.0"
