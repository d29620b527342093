"""The conversation: the loop, its events, its history. Pure: no I/O, no settings, no logging."""
