"""Rows of the ledger, for tests."""

from typing import Any

from callgate.state.entry import LedgerEntry


def entry(call_id: str = "call_1", *, writes: bool = True, **changes: Any) -> LedgerEntry:
    given = {
        "run_id": "run_1",
        "turn": 0,
        "tool": "pay",
        "arguments_hash": "00",
        "key_name": "alice",
        "started_at": 1e12,
    }
    return LedgerEntry(call_id=call_id, writes=writes, **{**given, **changes})
