"""What a setting guards: each guard says of an old and a new value of its setting whether the new one allows more.

A guard stands in the annotation of its field. `callgate.config.authority` compares two configs by them.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from pydantic import BaseModel

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


class Guard(msgspec.Struct, frozen=True):
    """The rule of one setting."""

    def loosened(self, old: Any, new: Any) -> str | None:
        """Return in words how the new value allows more than the old one, or None where it does not."""
        raise NotImplementedError

    def written(self, value: Any) -> Any:
        """Return as JSON what of a value the next start has to know."""
        return _as_json(value)

    def read(self, written: Any) -> Any:
        """Return the old value for `loosened`, of what was written."""
        return written


def _as_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in value]
    return value


class WidensTo(Guard, frozen=True):
    """A choice of which some values allow more than others."""

    choices: tuple[Any, ...]
    """The values, the one that allows least first."""

    def loosened(self, old: Any, new: Any) -> str | None:
        if self.choices.index(new) <= self.choices.index(old):
            return None
        return f"was `{_shown(old)}`, and would be `{_shown(new)}`"

    def read(self, written: Any) -> Any:
        if written in self.choices:
            return written
        return self.choices[0]  # of another version: what we do not know allowed least


WIDENS_ON: Final = WidensTo((False, True))
WIDENS_OFF: Final = WidensTo((True, False))
OFFERED: Final = WidensTo(("with_client_tools", None, "any"))
"""Not set at a key, it follows from the model's entry."""
MAY_BE_PRIVATE: Final = WidensTo((False, None, True))
"""Not set, it follows from the address."""
DISTRUSTS: Final = WidensTo((True, None, False))
"""Not set, it follows from the tool."""
KEEPS_TEXTS: Final = WidensTo((False, None, True))
"""Not set, texts may be kept in memory for whoever they are of."""


class Ceiling(Guard, frozen=True):
    """A number that bounds; None bounds nothing."""

    def loosened(self, old: float | None, new: float | None) -> str | None:
        if old is None or (new is not None and new <= old):
            return None
        if new is None:
            return f"was {old:g}, and would have no limit"
        return f"was {old:g}, and would be {new:g}"


CEILING: Final = Ceiling()


class Admits(Guard, frozen=True):
    """Names and globs of what is allowed; None allows everything."""

    def loosened(self, old: Iterable[str] | None, new: Iterable[str] | None) -> str | None:
        if old is None:
            return None
        if new is None:
            return "named what is allowed, and would allow all"
        earlier = tuple(old)
        added = [pattern for pattern in new if not any(_covers(other, pattern) for other in earlier)]
        if added:
            return f"would also allow {_shortened_list(added)}"
        return None


ADMITS: Final = Admits()


class OnlyThese(Guard, frozen=True):
    """The words of which one has to be met, each as it stands."""

    def loosened(self, old: Iterable[str], new: Iterable[str]) -> str | None:
        earlier = set(old)
        added = [word for word in new if word not in earlier]
        if added:
            return f"would also take {_shortened_list(added)}"
        return None


ONLY_THESE: Final = OnlyThese()


class Excludes(Guard, frozen=True):
    """Names and globs of what is refused."""

    def loosened(self, old: Iterable[str], new: Iterable[str]) -> str | None:
        now = tuple(new)
        gone = [pattern for pattern in old if not any(_covers(other, pattern) for other in now)]
        if gone:
            return f"would not leave out {_shortened_list(gone)} any more"
        return None


EXCLUDES: Final = Excludes()


_PLACE: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.-]*\}")
"""Where a text takes an argument."""


class Fixed(Guard, frozen=True):
    """What the operator fixed in a request: entries by name, at any depth, that take no argument."""

    def loosened(self, old: Any, new: Any) -> str | None:
        now = _fixed_in(new)
        gone = [name for name in _fixed_in(old) if name not in now]
        if gone:
            return f"would not fix {_shortened_list(gone)} any more"
        return None

    def written(self, value: Any) -> Any:
        return dict.fromkeys(_fixed_in(value), True)  # the values may be secrets


FIXED: Final = Fixed()


class FixedInUrl(Guard, frozen=True):
    """The query parameters that the operator fixed in a URL."""

    def loosened(self, old: str, new: str) -> str | None:
        return FIXED.loosened(_query_of(old), _query_of(new))

    def written(self, value: str) -> str:
        return f"?{urlencode(dict.fromkeys(_fixed_in(_query_of(value)), 'x'))}"


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


class Present(Guard, frozen=True):
    """A block or a value that guards by being there."""

    def loosened(self, old: Any, new: Any) -> str | None:
        if old is not None and new is None:
            return "would be gone"
        return None

    def written(self, value: Any) -> Any:
        return None if value is None else True


PRESENT: Final = Present()


class Same(Guard, frozen=True):
    """A value that must stay what it is."""

    def loosened(self, old: Any, new: Any) -> str | None:
        if old is not None and new != old:
            return "would be another"
        return None


SAME: Final = Same()


class AllKept(Guard, frozen=True):
    """A list of rules of which none may go."""

    def loosened(self, old: Sequence[Any], new: Sequence[Any]) -> str | None:
        now = _as_json(new)
        gone = sum(1 for rule in _as_json(old) if rule not in now)
        if gone:
            return f"{gone} of its rules would be gone or others"
        return None


ALL_KEPT: Final = AllKept()


class Waits(Guard, frozen=True):
    """The patterns that say which calls wait for approval."""

    def loosened(self, old: Patterns | None, new: Patterns | None) -> str | None:
        if old is None or not (old.always or old.never):
            # Where nothing is said another rule counts, or how safe the tool is, which `never` would take back.
            if new is None or not new.never:
                return None
            return f"would free {_shortened_list(new.never)} of approval"
        always: Sequence[str] = ()
        never: Sequence[str] = ()
        if new is not None:
            always = new.always
            never = new.never
        gone = [
            pattern
            for pattern in old.always
            if not any(
                _covers(other, pattern) and (not never or _literal_length(other) >= _literal_length(pattern))
                for other in always
            )
        ]
        if gone:
            return f"would not have {_shortened_list(gone)} wait for approval any more"
        freed = [pattern for pattern in never if not any(_covers(other, pattern) for other in old.never)]
        if freed:
            return f"would free {_shortened_list(freed)} of approval"
        return None

    def read(self, written: Any) -> Any:
        if written is None:
            return None
        return SimpleNamespace(**written)


WAITS: Final = Waits()

_SAFETIES: Final = ("destructive", "write", "read_only")


class SourceSafety(Guard, frozen=True):
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


class ArgumentBounds(Guard, frozen=True):
    """A JSON Schema of arguments, closed unless it says otherwise: what it refuses it has to go on refusing."""

    def loosened(self, old: Any, new: Any) -> str | None:
        gone = [".".join(path) for path in _bounds_gone(old, new)]
        if gone:
            return f"would not bound arguments any more by {_shortened_list(gone)}"
        return None


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
                        ((*place, str(name)), schema, others[name]) for name, schema in value.items() if name in others
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
            return all(item in old for item in new)
        if keyword in ("required", "allOf"):
            return all(item in new for item in old)
    return False


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _types(value: Any) -> set[str]:
    if isinstance(value, str):
        types = {value}
    elif isinstance(value, list):
        types = set(map(str, value))
    else:
        types = set[str]()
    if "number" in types:
        return types | {"integer"}
    return types


def _covers(wide: str, narrow: str) -> bool:
    """True if a pattern matches all that another one does. False where that is not certain."""
    if wide in ("*", narrow):
        return True
    if ":" in wide or ":" in narrow or ("/" in wide) != ("/" in narrow) or _UNBOUNDED_GLOB.search(wide):
        return False
    return fnmatch.fnmatchcase(narrow, wide)


def _literal_length(pattern: str) -> int:
    return sum(1 for letter in pattern if letter not in "*?[]")


def _shortened_list(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name[:64]}`" for name in names[:MAX_SHOWN])
    if len(names) <= MAX_SHOWN:
        return shown
    return f"{shown} and {len(names) - MAX_SHOWN} more"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        if value:
            return "on"
        return "off"
    if value is None:
        return "not set"
    return str(value)
