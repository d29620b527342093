"""Checks the text of a JSON body before it is parsed. JSON parsers differ in what they accept, and what one of them reads
differently is a way around a check; so an ambiguous body is refused.
"""

import re
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import Door, Opened, TooMuch, Untrusted, open_fast, written_here
from callgate.untrusted.readers import json_reader, read_leniently, read_value

Fields = dict[str, msgspec.Raw]

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_KEY = re.compile(rb'[ \t\r\n,]*"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*')
_ROUND = bytes.maketrans(b"[{]}", b"(())")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_MANY = 65_536
"""The number of brackets from which depth is not found by removing pairs, which takes one round for each level."""
LARGE_BODY = 262_144
"""The size from which a body is parsed in a thread: ten megabytes may take half a second."""
MAX_VALUES = 100_000
"""Values of one body; a thousand tools with a hundred fields each."""
UNCOUNTED: Final = 128 * 1024
"""A body of this length costs its decoder 15 ms at most, and counting it would add an eighth to a request of 100 KB; made of numbers like
1e308 alone it takes 0.16 s."""
CLIENT_BODY: Final = Door(
    name="a client's body",
    bytes=sys.maxsize,  # `limits.body_bytes` is compared while it is read
    uncounted=UNCOUNTED,
    values=MAX_VALUES,
    depth=MAX_VALUES,  # `limits.json_depth` is compared by `check_text`
)
PASSED_ON: Final = Door(
    name="a client's body that is passed on",
    bytes=sys.maxsize,
    uncounted=UNCOUNTED,
    values=sys.maxsize,  # a request for embeddings may have a million tokens
    is_skimmed=True,
    keys=MAX_VALUES,
    depth=sys.maxsize,
)
_WORDS: Final = {"keys": "fields"}
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_SPACE = b" \t\r\n"
_AROUND = len('"":,')
"""The characters around a key in its shortest form; the last field has a brace instead of the comma."""
LARGE: Final = 4096
"""The size of a body that may be split without parsing all of it."""
_MESSAGES = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\[')
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")

_fields = json_reader(Fields)


def read_fields(body: Opened, max_depth: int) -> Fields:
    """Return the undecoded fields of a JSON object. Raises `ChatError` 400 where it is invalid or ambiguous."""
    fields = split(body, max_depth)
    check_text(body, max_depth)
    return fields


def split(body: Opened, max_depth: int) -> Fields:
    """Return the undecoded fields of a JSON object without duplicates. Their texts are not checked."""
    try:
        fields = _fields(body)
    except msgspec.ValidationError as error:
        what = str(error).partition(" - at ")[0]
        raise ChatError(400, f"The body of the request must be a JSON object. {what}.", code="invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        check_text(body, max_depth)
        raise invalid_json(_first_words(error)) from None
    repeated = _repeated_key(body, fields)
    if repeated is not None:
        raise ChatError(400, f"'{repeated}' is given more than once.", param=repeated[:100], code="duplicate_parameter")
    return fields


def split_fast(body: Opened, tools: msgspec.Raw | None = None) -> Fields | None:
    """Split a large body without parsing its messages, which are most of it and are parsed once later. Equals `split` for every
    body whose messages are a list, or returns None: they have to come first or last, or before `tools`.

    The object is parsed here with an empty list in their place, which also shows that the list is a field of the object itself. `tools`
    were read before: where the body ends with them they are not parsed again either, see `split_before_fast`.
    """
    if len(body) < LARGE:
        return None
    opening = _MESSAGES.search(body, 0, LARGE)
    if opening is None:
        return None
    start = opening.end() - 1
    before = body[: opening.end()]
    stop = -1 if tools is None else _begin_of_last(body, tools)
    if stop > start:
        end = body.rfind(b"}],", start, stop) + 2
        around = written_here(before + b"]" + body[end:stop] + b"[]}")
    elif opening.start() == 1:
        end = body.rfind(b"}],") + 2
        around = written_here(before + b"]" + body[end:])
    else:
        end = body.rfind(b"]") + 1
        around = written_here(before + b"]" + body[end:])
    try:
        fields = _fields(around)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if bytes(fields.get("messages", b"")) != b"[]" or _repeated_key(around, fields) is not None:
        return None
    if tools is not None and stop > start:
        if not _is_last(fields, "tools"):
            return None
        fields["tools"] = tools
    fields["messages"] = msgspec.Raw(memoryview(body)[start:end])  # most of the body, and not copied
    return fields


def split_before_fast(body: Opened, name: str, last: msgspec.Raw) -> Fields | None:
    """Split a body that ends with a value which was read before, without parsing that again. Equals `split` for every body whose last
    field is `name` with that value, or returns None.

    The object is parsed with an empty list in its place. What is the last value of an object can be any other value as well.
    """
    start = _begin_of_last(body, last)
    if start < 0:
        return None
    around = written_here(body[:start] + b"[]}")
    try:
        fields = _fields(around)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not _is_last(fields, name) or _repeated_key(around, fields) is not None:
        return None
    fields[name] = last
    return fields


def _begin_of_last(body: Opened, last: msgspec.Raw) -> int:
    """Return where a body has this text before the brace that ends it; -1 where it has another."""
    start = len(body) - len(last) - 1
    if body.endswith(b"}") and start > 0 and body.startswith(last, start):
        return start
    return -1


def _is_last(fields: Fields, name: str) -> bool:
    """Return whether the last of the fields is the empty list of this name."""
    return bool(fields) and next(reversed(fields)) == name and bytes(fields[name]) == b"[]"


def check_text(text: Opened | msgspec.Raw, max_depth: int) -> None:
    """Check that a text is not nested too deep and all its strings are valid, because fields are passed on undecoded."""
    data = bytes(text)
    _check_depth(data, max_depth)
    try:
        data.decode()
        if _HALF.search(data):
            read_value(text)  # decodes every string, which fails for lone surrogates
    except UnicodeDecodeError:
        raise invalid_json("it is not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_json(_first_words(error)) from None


def open_body(body: bytes, door: Door = CLIENT_BODY) -> Opened:
    """Count a body and return it. Raises `ChatError` 400 for one with too many values, because a parser holds the interpreter
    until it has read all of them."""
    try:
        return open_fast(body, door) or Untrusted(body, door).open()
    except TooMuch as error:
        what = _WORDS.get(error.what, error.what)
        raise ChatError(
            400, f"The JSON body of your request has more than {error.limit} {what}.", code="too_many_values"
        ) from None


def check_whole(parts: Sequence[bytes | msgspec.Raw], max_bytes: int, param: str) -> None:
    """Refuse a request that is, together with stored parts that it refers to, larger than the limit of a body. A few bytes may
    refer to megabytes, a thousand times."""
    if sum(memoryview(part).nbytes for part in parts) > max_bytes:
        raise ChatError(
            413,
            f"Together with what it goes on from and refers to, the request is larger than {max_bytes} bytes. "
            "Begin a new conversation with what of it still matters.",
            param=param,
            code="request_too_large",
        )
    open_body(b",".join(map(bytes, parts)))


def invalid_json(why: str) -> ChatError:
    return ChatError(
        400,
        f"We could not parse the JSON body of your request: {why}. Expected a JSON object with 'model' and 'messages'.",
        code="invalid_json",
    )


def _check_depth(body: bytes, limit: int) -> None:
    if has_few_brackets(body, limit):
        return  # too few brackets to be too deep
    # Without escapes every other piece between quotes is a string. Only brackets and quotes are kept, and pairs of quotes
    # without a bracket between them are removed.
    if b"\\" in body:
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    else:
        plain = body
    marks = plain.translate(None, _NOT_MARKS).replace(b'""', b"")
    brackets = b"".join(marks.split(b'"')[::2])
    if not _is_within(brackets, limit):
        raise ChatError(
            400, f"The JSON body of your request is nested deeper than {limit} levels.", code="json_too_deep"
        )


def _is_within(brackets: bytes, limit: int) -> bool:
    if len(brackets) > _MANY:
        # In time that does not depend on the depth, and in slices, between which other threads may run.
        steps = memoryview(brackets.translate(_STEPS)).cast("b")
        depth = 0
        for start in range(0, len(steps), _MANY):
            piece = steps[start : start + _MANY]
            if max(accumulate(piece, initial=depth)) > limit:
                return False
            depth += sum(piece)
        return depth <= 0
    # Each round removes the innermost pairs of brackets.
    brackets = brackets.translate(_ROUND)
    for _ in range(limit):
        if not brackets:
            return True
        brackets = brackets.replace(b"()", b"")
    return not brackets


def has_few_brackets(body: bytes, limit: int) -> bool:
    """True if there are few brackets. They are searched one by one, which is much faster than counting."""
    if len(body) <= limit:
        return True
    remaining = limit
    for bracket in b"{[":
        place = body.find(bracket)
        while place >= 0:
            remaining -= 1
            if remaining < 0:
                return False
            place = body.find(bracket, place + 1)
    return True


def _repeated_key(body: bytes, fields: Fields) -> str | None:
    """Return a duplicate key of the object. The parser keeps the last of equal keys, so the text is compared with the fields
    in order: where another value is found, an earlier one was dropped."""
    size = 1 + _AROUND * len(fields) + len("".join(fields)) + len(b"".join(fields.values()))
    # A duplicate needs the characters around it, its key, and at least one for its value.
    room = len(body) - size
    if room <= _AROUND or room <= _AROUND + min(map(len, fields), default=0):
        return None
    place = body.index(b"{") + 1
    for key, text in fields.items():
        member = _KEY.match(body, place)
        value = bytes(text)
        if member is None or member[1] != key.encode() or not body.startswith(value, member.end()):
            return _first_repeated(body, fields)
        place = member.end() + len(value)
    if body[place:].strip(_SPACE) == b"}":
        return None
    return _first_repeated(body, fields)


def _first_repeated(body: bytes, fields: Fields) -> str | None:
    """Return the first duplicate key, for keys with any escapes."""
    place = _past(body, body.index(b"{") + 1)
    seen = set[str]()
    while body[place] == 0x22:
        string = _STRINGS.match(body, place)
        assert string is not None, "the reader has read it"
        key = read_leniently(written_here(string.group()))
        place = _past(body, _past(body, string.end()) + 1)
        value = bytes(fields[key])
        if key in seen or not body.startswith(value, place):
            return str(key)
        seen.add(key)
        place = _past(body, place + len(value))
        if body[place] not in b",}":
            return str(key)  # an earlier, longer value that begins like this one
        place = _past(body, place + 1) if body[place] == 0x2C else place
    return None


def _past(body: bytes, place: int) -> int:
    """Return the place after white space."""
    while body[place] in _SPACE:
        place += 1
    return place


def _first_words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).split("\n", 1)[0].rstrip(".")
