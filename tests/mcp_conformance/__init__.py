"""Callgate as an MCP client under the official conformance suite."""
