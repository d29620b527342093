"""The face of OpenAI's Responses API: its requests read into chats, chats written as its items and events."""
