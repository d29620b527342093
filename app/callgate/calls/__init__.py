"""One tool call and its states. Pure: imports nothing of ours, does no I/O."""
