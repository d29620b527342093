"""The commands about the ledger: `callgate ledger`, `callgate calls`."""
