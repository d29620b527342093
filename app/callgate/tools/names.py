"""Names that every provider takes, made from any text at all: at most 64 of `[A-Za-z0-9_-]`.

A legal name is kept. Any other gets a suffix that is a hash of the whole original, so two texts that look
alike once cleaned stay two names, and the same text gives the same name on every machine and in every order.
"""

import hashlib
import re

MAX_LENGTH = 64
RESERVED_PREFIX = "callgate__"
"""Under which a server tool is offered when a client's tool has its name."""

_HASH_DIGITS = 8
"""32 bits: among ten thousand tools of one cleaned-up name a clash is a matter of one in a hundred; the
registry sets such a pair apart as it does any other clash."""
MAX_STEM = MAX_LENGTH - _HASH_DIGITS - 1
"""What is left of a text in front of its hash."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")


def legal_name(text: str) -> str:
    """`text` if it is a legal name, else the nearest legal name with a hash of `text` behind it."""
    if is_legal(text):
        return text
    return hashed_name(text, text)


def is_legal(text: str) -> bool:
    return 0 < len(text) <= MAX_LENGTH and not _ILLEGAL.search(text)


def hashed_name(text: str, identity: str, prefix: str = "") -> str:
    """A legal name that starts like `text` and differs from others of its kind by a hash of `identity`.

    It never comes to lie under our own prefix, unless that is the `prefix` asked for.
    """
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    stem = _ILLEGAL.sub("_", text).strip("_")
    while stem.startswith(RESERVED_PREFIX):
        stem = stem.removeprefix(RESERVED_PREFIX).strip("_")
    return f"{prefix}{stem[: MAX_LENGTH - len(prefix) - _HASH_DIGITS - 1] or 'tool'}_{digest}"
