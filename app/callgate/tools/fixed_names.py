"""The names that an operator has fixed in a request, which no argument may set again under any spelling.

Servers disagree on what is the same name: some decode it twice, ignore its case, take `tenant[]` and `tenant.x` for parts of
`tenant`, or read dots as underscores. What one of them takes for a fixed name counts as it.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from urllib.parse import unquote_plus

_DECODED_AT_MOST = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATORS = re.compile(r"[\s.\[-]")
_PARTS = re.compile(r"[\[\].]+")


class FixedNames:
    """Tells which names of arguments mean a fixed one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._paths: dict[tuple[str, ...], str] = {}
        self._flat: dict[str, str] = {}
        for name in names:
            plain = _plain(name)
            self._paths[_path(plain)] = name
            if "[" not in plain:
                self._flat[_flat(plain)] = name

    def meant_by(self, name: str) -> str | None:
        """Return the fixed name that an argument's name means, or is a part or the whole of; None where it means none."""
        for reading in _readings(name):
            if (fixed := self._flat.get(_flat(reading))) is not None:
                return fixed
            path = _path(reading)
            for other, fixed in self._paths.items():
                length = min(len(path), len(other))
                if path[:length] == other[:length]:
                    return fixed
        return None


NO_NAMES = FixedNames(())


def _readings(name: str) -> Iterator[str]:
    """Yield a name as servers may read it that decode it none, one or several times."""
    yield _plain(name)
    for _ in range(_DECODED_AT_MOST):
        decoded = unquote_plus(name)
        if decoded == name:
            return
        name = decoded
        yield _plain(name)


def _plain(name: str) -> str:
    text = unicodedata.normalize("NFKC", name.partition("\0")[0])
    return _CONTROL.sub("", text).strip().casefold()


def _path(plain: str) -> tuple[str, ...]:
    """Return the parts of a name with brackets or dots: `a[b][]` is `a`, `b`."""
    return tuple(part for part in _PARTS.split(plain) if part) or ("",)


def _flat(plain: str) -> str:
    """Return the name as PHP would have it, which also reads a bracket that nothing closes as an underscore."""
    whole, _, part = plain.partition("[")
    return _SEPARATORS.sub("_", whole if "]" in part else plain)
