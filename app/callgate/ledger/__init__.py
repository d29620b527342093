"""The ledger of tool calls: each is written down before it runs, so that a crash leaves no doubt about what may have
run."""
