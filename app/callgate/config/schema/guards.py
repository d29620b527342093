"""What a setting guards: each guard says of an old and a new value of its setting whether the new one allows more.

A guard stands in the annotation of its field. `callgate.config.authority` compares two configs by them.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

_UNBOUNDED_GLOB = re.compile(r"[?\[]")
MAX_SHOWN: Final = 5


class Patterns(Protocol):
    """The lists of patterns that say which calls wait for approval."""

    @property
    def always(self) -> Sequence[str]:
        """The calls that wait."""
        ...

    @property
    def never(self) -> Sequence[str]:
        """The calls that do not."""
        ...


@dataclass(frozen=True)
class Guard:
    """The rule of one setting."""

    def loosened(self, old: Any, new: Any) -> str | None:
        """Return in words how the new value allows more than the old one, or None where it does not."""
        raise NotImplementedError


@dataclass(frozen=True)
class WidensTo(Guard):
    """A choice of which some values allow more than others."""

    choices: tuple[Any, ...]
    """The values, the one that allows least first."""

    def loosened(self, old: Any, new: Any) -> str | None:
        if self.choices.index(new) <= self.choices.index(old):
            return None
        return f"was `{_shown(old)}`, and would be `{_shown(new)}`"


WIDENS_ON: Final = WidensTo((False, True))
WIDENS_OFF: Final = WidensTo((True, False))
OFFERED: Final = WidensTo(("with_client_tools", None, "any"))
"""Not set at a key, it follows from the model's entry."""
MAY_BE_PRIVATE: Final = WidensTo((False, None, True))
"""Not set, it follows from the address."""


@dataclass(frozen=True)
class Ceiling(Guard):
    """A number that bounds; None bounds nothing."""

    def loosened(self, old: float | None, new: float | None) -> str | None:
        if old is None or (new is not None and new <= old):
            return None
        return f"was {old:g}, and would have no limit" if new is None else f"was {old:g}, and would be {new:g}"


CEILING: Final = Ceiling()


@dataclass(frozen=True)
class Admits(Guard):
    """Names and globs of what is allowed; None allows everything."""

    def loosened(self, old: Iterable[str] | None, new: Iterable[str] | None) -> str | None:
        if old is None:
            return None
        if new is None:
            return "named what is allowed, and would allow all"
        known = tuple(old)
        more = [pattern for pattern in new if not any(_covers(each, pattern) for each in known)]
        return f"would also allow {_listed(more)}" if more else None


ADMITS: Final = Admits()


@dataclass(frozen=True)
class Excludes(Guard):
    """Names and globs of what is refused."""

    def loosened(self, old: Iterable[str], new: Iterable[str]) -> str | None:
        now = tuple(new)
        gone = [pattern for pattern in old if not any(_covers(each, pattern) for each in now)]
        return f"would not leave out {_listed(gone)} any more" if gone else None


EXCLUDES: Final = Excludes()


_PLACE: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.-]*\}")
"""Where a text takes an argument."""


@dataclass(frozen=True)
class Fixed(Guard):
    """What the operator fixed in a request: entries by name, at any depth, that take no argument."""

    def loosened(self, old: Any, new: Any) -> str | None:
        now = _fixed_in(new)
        gone = [name for name in _fixed_in(old) if name not in now]
        return f"would not fix {_listed(gone)} any more" if gone else None


FIXED: Final = Fixed()


@dataclass(frozen=True)
class FixedInUrl(Guard):
    """The query parameters that the operator fixed in a URL."""

    def loosened(self, old: str, new: str) -> str | None:
        return FIXED.loosened(_query_of(old), _query_of(new))


FIXED_IN_URL: Final = FixedInUrl()


def _query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def _fixed_in(value: Any) -> list[str]:
    """Return the places in a value that hold a text or number of the operator's own."""
    fixed: list[str] = []
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, Mapping):
            waiting += [((*path, str(key)), inner) for key, inner in part.items()]
        elif isinstance(part, list):
            waiting += [((*path, str(index)), inner) for index, inner in enumerate(part)]
        elif path and not (isinstance(part, str) and _PLACE.search(part)):
            fixed.append(".".join(path))
    return sorted(fixed)


@dataclass(frozen=True)
class Present(Guard):
    """A block or a value that guards by being there."""

    def loosened(self, old: Any, new: Any) -> str | None:
        return "would be gone" if old is not None and new is None else None


PRESENT: Final = Present()


@dataclass(frozen=True)
class Same(Guard):
    """A value that must stay what it is."""

    def loosened(self, old: Any, new: Any) -> str | None:
        return "would be another" if old is not None and new != old else None


SAME: Final = Same()


@dataclass(frozen=True)
class AllKept(Guard):
    """A list of rules of which none may go."""

    def loosened(self, old: Sequence[Any], new: Sequence[Any]) -> str | None:
        gone = sum(1 for rule in old if rule not in new)
        return f"{gone} of its rules would be gone or others" if gone else None


ALL_KEPT: Final = AllKept()


@dataclass(frozen=True)
class Waits(Guard):
    """The patterns that say which calls wait for approval."""

    is_general: bool = False
    """It is the rule for all tools, whose `never` only takes back from its own `always`."""

    def loosened(self, old: Patterns | None, new: Patterns | None) -> str | None:
        if old is None or not (old.always or old.never):
            # Where an entry says nothing the general rule counts, which `never` would take back.
            freed = () if self.is_general or new is None else new.never
            return f"would free {_listed(freed)} of approval" if freed else None
        never = () if new is None else new.never
        always = () if new is None else new.always
        gone = [
            pattern
            for pattern in old.always
            if not any(
                _covers(each, pattern) and (not never or _literal_length(each) >= _literal_length(pattern))
                for each in always
            )
        ]
        if gone:
            return f"would not have {_listed(gone)} wait for approval any more"
        freed = [pattern for pattern in never if not any(_covers(each, pattern) for each in old.never)]
        return f"would free {_listed(freed)} of approval" if freed and (always or not self.is_general) else None


WAITS: Final = Waits()

_SAFETIES: Final = ("destructive", "write", "read_only")


@dataclass(frozen=True)
class SourceSafety(Guard):
    """What the entry of a source says that its tools may do to the world. Where it says nothing, each tool speaks for itself."""

    def loosened(self, old: str | None, new: str | None) -> str | None:
        if old == new or new == _SAFETIES[0] or old == _SAFETIES[-1]:
            return None
        if old is not None and new is not None and _SAFETIES.index(new) < _SAFETIES.index(old):
            return None
        return f"was `{old or 'not set'}`, and would be `{new or 'not set'}`"


SAFETY: Final = SourceSafety()

_ANNOTATIONS: Final = frozenset(
    "$anchor $comment $id $schema default deprecated description examples readOnly title writeOnly".split()
)
"""Keywords of JSON Schema that refuse nothing."""

_SCHEMAS_BY_NAME: Final = frozenset("$defs definitions patternProperties properties".split())


@dataclass(frozen=True)
class ArgumentBounds(Guard):
    """A JSON Schema of arguments, closed unless it says otherwise: what it refuses it has to go on refusing."""

    def loosened(self, old: Any, new: Any) -> str | None:
        gone = [".".join(path) for path in _bounds_gone(old, new)]
        return f"would not bound arguments any more by {_listed(gone)}" if gone else None


ARGUMENTS: Final = ArgumentBounds()


def _bounds_gone(old: Any, new: Any) -> list[tuple[str, ...]]:
    """Return the keywords, at places both schemas have, that may refuse less than they did."""
    gone: list[tuple[str, ...]] = []
    if new.get("additionalProperties", False) is not False and "additionalProperties" not in old:
        gone.append(("additionalProperties",))
    waiting: list[tuple[tuple[str, ...], Any, Any]] = [((), old, new)]
    while waiting:
        path, before, now = waiting.pop()
        if before is True or now is False or before == now:
            continue
        if not isinstance(before, Mapping) or not isinstance(now, Mapping):
            if before is False or set(before) - _ANNOTATIONS:
                gone.append(path)
            continue
        for key, value in before.items():
            place = (*path, str(key))
            if key in _ANNOTATIONS or str(key).startswith("x-"):
                continue
            if key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
                others = now.get(key)
                if isinstance(others, Mapping):
                    waiting += [
                        ((*place, str(name)), each, others[name]) for name, each in value.items() if name in others
                    ]
            elif key in ("additionalProperties", "items", "unevaluatedProperties"):
                waiting.append((place, value, now.get(key, True)))
            elif key not in now or not _refuses_as_much(str(key), value, now[key]):
                gone.append(place)
    return sorted(gone)


def _refuses_as_much(keyword: str, old: Any, new: Any) -> bool:
    """True if a keyword refuses at least what it did. False where that is not certain."""
    if old == new:
        return True
    if keyword.startswith(("max", "exclusiveMax")):
        return _are_numbers(old, new) and new <= old
    if keyword.startswith(("min", "exclusiveMin")):
        return _are_numbers(old, new) and new >= old
    if keyword == "type":
        return _types(new) <= _types(old)
    if isinstance(old, list) and isinstance(new, list):
        if keyword in ("enum", "anyOf", "oneOf"):
            return all(each in old for each in new)
        if keyword in ("required", "allOf"):
            return all(each in new for each in old)
    return False


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _types(value: Any) -> set[str]:
    types = {value} if isinstance(value, str) else set(map(str, value)) if isinstance(value, list) else set[str]()
    return types | {"integer"} if "number" in types else types


def _covers(wide: str, narrow: str) -> bool:
    """True if a pattern matches all that another one does. False where that is not certain."""
    if wide in ("*", narrow):
        return True
    if ":" in wide or ":" in narrow or ("/" in wide) != ("/" in narrow) or _UNBOUNDED_GLOB.search(wide):
        return False
    return fnmatch.fnmatchcase(narrow, wide)


def _literal_length(pattern: str) -> int:
    return sum(1 for letter in pattern if letter not in "*?[]")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name[:64]}`" for name in names[:MAX_SHOWN])
    return shown if len(names) <= MAX_SHOWN else f"{shown} and {len(names) - MAX_SHOWN} more"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not set" if value is None else str(value)
