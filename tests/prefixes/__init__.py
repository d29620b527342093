"""What a provider can keep of a prompt: the bytes that are the same in every request of a session, on each API and lane."""
