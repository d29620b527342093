"""Key-value stores for what outlives a request: in memory, on disk, in Redis."""
