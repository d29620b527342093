"""Recorded runs: one row for each request, its events, and its texts where the operator wants them."""
