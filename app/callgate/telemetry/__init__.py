"""Logs and metrics, by listeners to the events of chats."""
