"""Values of a provider's JSON that may be of any type, as what they should be or as nothing."""

from collections.abc import Sequence
from typing import Any


def str_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def nonempty_str(value: Any) -> str | None:
    """Return a text; None for an empty one as well."""
    return value if isinstance(value, str) and value else None


def list_or_empty(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
