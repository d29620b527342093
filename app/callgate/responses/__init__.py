"""OpenAI's Responses API: reads its requests into chats, and writes chats as its items and events.

Read `face` first. For users: `docs/responses.md`.
"""
