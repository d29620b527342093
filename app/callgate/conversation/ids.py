"""Ids of our own making. They distinguish things and protect nothing, so they need no system call for every one."""

from random import Random
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["req", "run", "call"]

_bytes = Random().randbytes  # noqa: S311 - seeded by the system, once for the process


def new_id(kind: Kind) -> str:
    """96 random bits: two of them are never the same."""
    return f"{kind}_{_bytes(12).hex()}"
