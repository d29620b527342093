"""Reads the arguments of a call. This is the only reader of JSON that a model wrote.

It returns one object or raises `ArgumentsError`. Which other forms are accepted, and which mistakes have only one possible
meaning and are repaired, is the closed list of rules A1 to A8 in `tests/corpus/README.md`. Nothing is guessed, and no text
becomes `{}` because it could not be read.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile, groupby, islice
from typing import Any

import msgspec

from callgate.calls.json_text import (
    LARGE,
    NOTHING_MORE,
    TOO_DEEP,
    JsonFault,
    is_too_deep,
    join_halves,
    join_surrogates,
    read_json,
    same_json,
    sound_text,
    value_end,
)
from callgate.calls.states import Flaw, FlawDetail

BLOCK = 4096
"""The number of fragments that are joined into one: a small string takes ten times the memory of its characters."""
MAX_LOOKS = 16
"""How often fragments with balanced brackets may fail to parse before the call ends; each attempt reads all of them."""
MAX_REPEATS = 64
"""How often one object may be repeated in a call's arguments and still count as sent again."""
MAX_STRING_LAYERS = 2
"""How often arguments may be encoded as a string inside JSON. Providers do it once; behind two proxies, twice."""
MIN_SNAPSHOTS = 2
"""Fragments that must begin with the one before until they count as snapshots."""
MAX_KEPT = 1000
"""Characters that are kept of arguments that had become too large."""
MAX_QUOTE = 60
"""Characters of the model's text shown on either side of where it broke."""
_BLANKS = " \t\r\n"
"""The whitespace of JSON; any other is an error behind an object."""


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """One whole object, and whether a mistake was repaired to read it."""

    value: dict[str, Any]
    repaired: bool = False
    absent: bool = False
    """Nothing was written, or `null`. Whether that means `{}` depends on how the turn ended."""


class ArgumentsError(ValueError):
    """Raised where the arguments are not one whole object."""

    def __init__(self, flaw: Flaw, problem: FlawDetail) -> None:
        super().__init__(f"{flaw}: expected {problem.expected}")
        self.flaw = flaw
        self.problem = problem


def read_arguments(fragments: Sequence[Any]) -> Arguments:
    """Return the object that these fragments make together. Raises `ArgumentsError` when they do not make one.

    A fragment is a piece of text, or whatever else a provider sent in its place.
    """
    written = Fragments()
    for fragment in fragments:
        written.add(fragment)
    return written.read()


def take_object(value: Any) -> Arguments:
    """Wrap an object that one of our readers of text formats made, where nothing was repaired."""
    return Arguments(_sound_object(value))


def encode_arguments(value: Mapping[str, Any]) -> str:
    """Encode an object as the JSON text that providers take."""
    return json.dumps(value, ensure_ascii=False)


class Fragments(msgspec.Struct, eq=False, kw_only=True):
    """The arguments of one call while they come. Adding a fragment costs the same however many there are; they are
    joined and read once, when the call is settled."""

    limit: int | None = None
    """In bytes. Beyond it only the beginning of the arguments is kept."""
    too_large: bool = False
    size: int = 0
    _parts: list[Any] = []
    """What came before `_pieces`: joined text, and objects that came in the place of text."""
    _pieces: list[str] = []
    _most: int = sys.maxsize
    _others: bool = False
    _last: str | None = None
    _snapshots: int = 0
    """How many nonblank fragments began with the one before; -1 once one did not."""
    _snapshots_proven: bool = False
    _watch: "_BracketTracker | None" = None
    _seen: Arguments | None = None
    _looks: int = MAX_LOOKS

    def __post_init__(self) -> None:
        if self.limit is not None:
            self._most = self.limit

    def __bool__(self) -> bool:
        return bool(self._pieces or self._parts)

    def add(self, fragment: Any) -> None:
        if not isinstance(fragment, str):
            self._add_other(fragment)
            return
        self.size += len(fragment) if fragment.isascii() else _size(fragment)
        if self.size > self._most:
            self._truncate(fragment)
            return
        pieces = self._pieces
        pieces.append(fragment)
        if self._snapshots >= 0:
            self._follow(fragment)
        elif len(pieces) >= BLOCK:
            self._join_pieces()
        if self._watch is not None or self._seen is not None:
            self._watched(fragment)

    def text(self) -> str:
        """Return all of it as the model wrote it; an object that came instead of text, as JSON."""
        if self._others:
            return join_halves("".join(part if isinstance(part, str) else _encoded(part) for part in self._all()))
        return join_halves("".join(self._all()))

    def read(self) -> Arguments:
        if self.too_large:
            problem = FlawDetail(expected=f"at most {self.limit} bytes of arguments", got="more than that")
            raise ArgumentsError(Flaw.ARGUMENTS_TOO_LARGE, problem)
        if self._others:
            # Some providers send the object itself, some of them again with each chunk, some after an empty one.
            objects = [
                value
                for is_text, group in groupby(self._all(), lambda part: isinstance(part, str))
                for value in _objects_of(group, is_text=is_text)
            ]
            distinct = list(dropwhile(lambda value: not value, objects[:-1])) + objects[-1:]
            if any(not same_json(distinct[0], other) for other in distinct[1:]):
                raise ArgumentsError(
                    Flaw.INVALID_JSON,
                    FlawDetail(expected="one object", got=f"{len(distinct)} objects that differ, in one call"),
                )
            return Arguments(distinct[0], repaired=True)
        text = join_halves("".join(self._all()))
        last = self._last if self._snapshots >= MIN_SNAPSHOTS else None
        return _read_text(text, last)

    def object_so_far(self) -> Arguments | None:
        """Return the object that the fragments already make, or None. Cheap after each fragment: the text is only parsed
        when its brackets are balanced."""
        if self._seen is None and self.size <= LARGE:
            self._seen = self._snapshot() or self._closed()
        return self._seen

    def _snapshot(self) -> Arguments | None:
        """Read the last fragment alone, where each repeats the one before."""
        if self._others or self._last is None or self._snapshots < MIN_SNAPSHOTS:
            return None
        if not self._last.rstrip().endswith("}"):
            return None
        if not self._snapshots_proven:
            try:
                read_json("".join(self._all()))
            except JsonFault as fault:
                self._snapshots_proven = not fault.cut
            if not self._snapshots_proven:
                return None
        value = _object_in(join_halves(self._last))
        if value is None:
            return None
        return Arguments(value, repaired=True)

    def _closed(self) -> Arguments | None:
        """Read all fragments together, once their brackets are balanced."""
        if self._watch is None:
            self._watch = _BracketTracker()
            for part in self._all():
                if isinstance(part, str):
                    self._watch.feed(part)
        if not self._looks or not (self._watch.closed or self._others):
            return None
        try:
            return self.read()
        except ArgumentsError:
            self._looks -= 1
            return None

    def _add_other(self, fragment: Any) -> None:
        if fragment is None:
            return
        if self.limit is not None:
            self.size += _size(_encoded(fragment))
            if self.size > self._most:
                self._truncate(_encoded(fragment))
                return
        self._join_pieces()
        self._parts.append(fragment)
        self._others = True
        self._seen = None

    def _truncate(self, fragment: str) -> None:
        """Keep only the beginning, to recognise the call by. The mark at its end makes it invalid JSON."""
        if self.too_large:
            return
        # Each part is cut before it is joined: one alone may be as large as all that was allowed, or larger.
        parts = [*self._all(), fragment]
        beginning = "".join((part if isinstance(part, str) else _encoded(part))[:MAX_KEPT] for part in parts)[:MAX_KEPT]
        self._parts = [f"{beginning}…"]
        self._pieces = []
        self._others = False
        self._last = None
        self._snapshots = -1
        self._watch = self._seen = None
        self.too_large = True

    def _follow(self, fragment: str) -> None:
        """Find out whether fragments are snapshots, each with all of the text so far. For real pieces the second fragment
        already rules it out."""
        if fragment.isspace() or not fragment:
            return
        if self._last is None or fragment.startswith(self._last):
            self._last = fragment
            self._snapshots += 1
        else:
            self._last = None
            self._snapshots = -1

    def _watched(self, fragment: str) -> None:
        if not fragment.strip(_BLANKS):
            return
        self._seen = None
        if self.size > LARGE:
            self._watch = None
        elif self._watch is not None:
            self._watch.feed(fragment)

    def _join_pieces(self) -> None:
        if self._pieces:
            self._parts.append("".join(self._pieces))
            self._pieces.clear()

    def _all(self) -> list[Any]:
        if not self._parts:
            return self._pieces
        return [*self._parts, *self._pieces]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


# Text --------------------------------------------------------------------------------------------------------------


def _read_text(text: str, last_snapshot: str | None = None) -> Arguments:
    if not text or text.isspace():
        return Arguments({}, absent=True)
    try:
        value = read_json(text)
    except JsonFault as fault:
        repaired = _repaired(text, fault, last_snapshot)
        if repaired is None:
            raise _unreadable(text, fault) from None
        return Arguments(repaired, repaired=True)
    if value is None:
        return Arguments({}, absent=True)
    if isinstance(value, dict):
        return Arguments(value)
    if isinstance(value, str):
        return Arguments(_inside_strings(value), repaired=True)
    raise _no_object(value)


def _inside_strings(text: str) -> dict[str, Any]:
    """Return the object in a JSON string, or in a string inside that string."""
    value: Any = text
    for _ in range(MAX_STRING_LAYERS):
        try:
            value = read_json(value)
        except JsonFault as fault:
            if fault.grammatical:
                raise _unreadable(value, fault) from None
            raise _no_object(text) from None
        if isinstance(value, dict):
            return value
        if not isinstance(value, str):
            break
    raise _no_object(text)


# Repairs -----------------------------------------------------------------------------------------------------------


def _repaired(text: str, fault: JsonFault, last_snapshot: str | None) -> dict[str, Any] | None:
    """Return the object that was meant, if exactly one mistake explains the text. One repair is made, never two."""
    # Where all fragments together are the beginning of a JSON text, each object that begins like the text stands inside it.
    if last_snapshot is not None and not fault.cut:
        snapshot = _object_in(join_halves(last_snapshot))
        if snapshot is not None:
            return snapshot
    if fault.expected == NOTHING_MORE:
        # One object that was sent more than once, or that follows a single `{}`.
        objects = islice(_objects_in_a_row(text), MAX_REPEATS + 1)
        first = next(objects)
        second = next(objects)
        if first is None:
            return None
        if second and not first:
            if next(objects, first) is first:
                return second
            return None
        others = (second, *objects)
        alike = len(others) < MAX_REPEATS and all(same_json(first, other) for other in others)
        if alike:
            return first
        return None
    if (inside := _fenced(text)) is not None:
        return _object_in(inside)
    if _CONTROL.search(text):
        return _object_in(_STRING.sub(_escape_controls, text))
    return None


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = read_json(text)
    except JsonFault:
        return None
    if isinstance(value, dict):
        return value
    return None


_FENCE = re.compile(r"```[ \t]*[\w+.-]*")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPE_OR_CONTROL = re.compile(r"\\.|[\x00-\x1f]", re.DOTALL)


def _fenced(text: str) -> str | None:
    """Return the content of a code fence around the whole text."""
    text = text.strip()
    opening = _FENCE.match(text)
    if opening is None or not text.endswith("```"):
        return None
    return text[opening.end() : -3].strip()


def _escape_controls(string: re.Match[str]) -> str:
    """Escape control characters inside a string. One behind a backslash stays as it is: that is an invalid escape."""
    if "\\" not in string[0]:
        escaped = string[0]
        for code in range(32):
            escaped = escaped.replace(chr(code), f"\\u{code:04x}")
        return escaped
    if not _CONTROL.search(string[0]):
        return string[0]
    return _ESCAPE_OR_CONTROL.sub(lambda match: _escaped(match[0]), string[0])


def _escaped(characters: str) -> str:
    if characters.startswith("\\"):
        return characters
    return f"\\u{ord(characters):04x}"


def _objects_in_a_row(text: str) -> Iterator[dict[str, Any] | None]:
    """Yield object after object; at anything else yield None and end."""
    at = 0
    text = text.strip(" \t\n\r")
    while at < len(text):
        try:
            end = value_end(text, at)
        except JsonFault:
            yield None
            return
        yield _object_in(text[at:end])
        at = end


# Objects in the place of text --------------------------------------------------------------------------------------


def _objects_of(group: Iterable[Any], *, is_text: bool) -> Iterator[dict[str, Any]]:
    if not is_text:
        yield from map(_sound_object, group)
        return
    text = join_halves("".join(group))
    if text.strip():
        yield _sound_object(_read_text(text).value)


def _sound_object(value: Any) -> dict[str, Any]:
    """Return the object if strict JSON text could have made it: its provider may have parsed leniently."""
    if not isinstance(value, dict):
        raise _no_object(value)
    try:
        if is_too_deep(value):
            raise ValueError(TOO_DEEP)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        joined = _object_in(join_surrogates(text))
        if joined is not None:
            return joined
        problem = FlawDetail(expected="both halves of each surrogate pair", got=_quoted(text))
        raise ArgumentsError(Flaw.INVALID_JSON, problem) from None
    except (ValueError, TypeError) as error:
        raise ArgumentsError(Flaw.INVALID_JSON, FlawDetail(expected="one JSON object", got=str(error))) from None
    return value


def _encoded(value: Any) -> str:
    """Encode a value that came instead of text, for the history and for errors."""
    if is_too_deep(value):
        return f"({type(value).__name__}, nested too deep)"
    return json.dumps(value, ensure_ascii=False, default=str)


# What was wrong, for the model -------------------------------------------------------------------------------------


def _no_object(value: Any) -> ArgumentsError:
    return ArgumentsError(Flaw.NOT_AN_OBJECT, FlawDetail(expected="one JSON object", got=_quoted(_encoded(value))))


def _unreadable(text: str, fault: JsonFault) -> ArgumentsError:
    flaw = Flaw.TRUNCATED if fault.cut else Flaw.INVALID_JSON
    at = fault.position
    if at <= MAX_QUOTE:
        before = text[:at]
    else:
        before = f"…{text[at - MAX_QUOTE : at]}"
    got = sound_text(before) + _quoted(text[at:])
    return ArgumentsError(flaw, FlawDetail(expected=fault.expected, got=got, note=_where(text, fault)))


def _where(text: str, fault: JsonFault) -> str:
    at = fault.position
    line = text.count("\n", 0, at) + 1
    if line == 1:
        place = f"at character {at}"
    else:
        place = f"at character {at}, in line {line}"
    inside = ""
    if fault.inside:
        inside = f', in "{_quoted(fault.inside)}"'
    if fault.cut:
        return f"the text ends {place}{inside}"
    hint = _hint(text, at, fault.expected)
    return f"{place}{inside}{hint and ': '}{hint}"


def _hint(text: str, at: int, expected: str) -> str:
    """Name the mistake where it is one of those that models often make."""
    following = text[at : at + 9]
    if expected == NOTHING_MORE:
        if following.startswith("{"):
            return "a second object needs a call of its own"
        return "something follows the object"
    if following.startswith("'"):
        return "strings and keys take double quotes"
    if following.startswith(("True", "False", "None")):
        return "write true, false and null"
    if following.startswith(("NaN", "Infinity", "-Infinity")):
        return "JSON has no NaN and no Infinity"
    if following.startswith(("//", "/*", "#")):
        return "JSON has no comments"
    if following[:1] in ("}", "]") and text[:at].rstrip().endswith(","):
        return f'no comma may stand before "{following[0]}"'
    return ""


def _quoted(text: str) -> str:
    if len(text) > MAX_QUOTE:
        text = f"{text[:MAX_QUOTE]}…"
    return sound_text(text)


# Brackets, while the text is coming ----------------------------------------------------------------------------------


class _BracketTracker:
    """Tracks brackets and quotes in text that comes in pieces, each character once."""

    __slots__ = ("_depth", "_escaped", "_in_string", "closed")

    def __init__(self) -> None:
        self.closed = False
        """The bracket or quote that the text began with is closed; it may be one whole object."""
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> None:
        at = 0
        if self._escaped and text:
            at = 1
        self._escaped = self._escaped and not text
        while at < len(text):
            match = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if match is None:
                return
            at = match.end()
            if self._in_string:
                if match[0] == '"':
                    self._in_string = False
                    self.closed = self._depth == 0
                else:
                    self._escaped = at == len(text)
                    at += 1
            else:
                mark = match[0]
                if mark == '"':
                    self._in_string = True
                else:
                    self._depth += 1 if mark in "{[" else -1
                self.closed = self._depth == 0 and not self._in_string


_OUTSIDE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
