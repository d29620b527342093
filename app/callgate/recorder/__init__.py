"""Recorded runs: one row for each request, what happened in it, and, where the operator wants it, what was said."""
