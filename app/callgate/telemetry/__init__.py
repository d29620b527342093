"""Logs and metrics. Listeners get the events of a chat that its client gets, and act on nothing."""
