"""Generates ids. They distinguish things and protect nothing, so they need no system call for every one."""

import os
import time
from binascii import hexlify
from random import Random
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["call"]

_random = Random()  # noqa: S311 - seeded by the system, once for the process
random_bits = _random.getrandbits
os.register_at_fork(after_in_child=_random.seed)  # workers would make the same ids, one like the other


def new_id(kind: Kind) -> str:
    """96 random bits: two of them are never the same."""
    return f"{kind}_{random_bits(96):024x}"


def new_item_id(prefix: str) -> str:
    """Return the id of an object that a client keeps here."""
    return f"{prefix}_{random_bits(96):024x}"


def new_request_id() -> str:
    """Return an id without digits: it is part of error messages, and some clients retry on any `500` in one."""
    return "req_" + hexlify(random_bits(96).to_bytes(12)).translate(_LETTERS).decode()


_LETTERS = bytes.maketrans(b"0123456789", b"ghijklmnop")


def new_run_id() -> str:
    """Milliseconds and 52 random bits: ids that sort by time are added at the end of an index, however large it is."""
    return f"run_{time.time_ns() // 1_000_000:011x}{random_bits(52):013x}"
