"""The ledger of tool calls: each is stored before it runs, so that after a crash it is known what may have run."""
