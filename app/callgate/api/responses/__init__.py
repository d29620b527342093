"""OpenAI's Responses API: its requests are read into chats, and chats are written as its items and events."""
