"""Checks the text of a JSON body before it is parsed. Readers of JSON differ in what they let through, and
what one of them sees and another does not is a way around a check; so a body that leaves room for doubt is refused.
"""

import json
import re
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from callgate.conversation.errors import ChatError

Fields = dict[str, msgspec.Raw]

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_KEY = re.compile(rb'[ \t\r\n,]*"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*')
_ROUND = bytes.maketrans(b"[{]}", b"(())")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_MANY = 65_536
"""Brackets from which on they are not taken away in rounds, of which there may be as many as levels."""
LARGE_BODY = 262_144
"""From here on a body is read in a thread: one of ten megabytes can be built so that it takes half a second."""
MAX_VALUES = 100_000
"""Values of one body, those within strings not counted; a thousand tools with a hundred fields each."""
_NOT_BEGINNINGS = bytes(set(range(256)) - set(b'[{,"'))
_NOT_FIELDS = bytes(set(range(256)) - set(b':"'))
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_SPACE = b" \t\r\n"
_AROUND = len('"":,')
"""What stands around the shortest spelling of a key; the last field has a brace for a comma."""
_LARGE = 4096
_MESSAGES = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\[')
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")

_fields = msgspec.json.Decoder(Fields)


def read_fields(body: bytes, max_depth: int) -> Fields:
    """The fields of a JSON object, each as its text; `ChatError` 400 for what is none or is not plain."""
    fields = split(body, max_depth)
    check_text(body, max_depth)
    return fields


def split(body: bytes, max_depth: int) -> Fields:
    """The fields of a JSON object, no one twice. Their texts are for whoever takes them to check."""
    try:
        fields = _fields.decode(body)
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


def split_around_messages(body: bytes) -> Fields | None:
    """The fields of an object whose messages come last, or first as SDKs write them, without a look at those: they are
    most of a large body, and whoever reads them reads them once. None where they stand otherwise.

    It is the body's split only if the text of the messages turns out to be a list: then the object around an empty list,
    which was read here, is an object around that one as well. That the list is a field of it, and not of something inside
    it, shows in what was read.
    """
    if len(body) < _LARGE:
        return None
    found = _MESSAGES.search(body, 0, _LARGE)
    if found is None:
        return None
    start, before = found.end() - 1, body[: found.end()]
    end = body.rfind(b"}],") + 2 if found.start() == 1 else body.rfind(b"]") + 1
    messages, around = body[start:end], before + b"]" + body[end:]
    try:
        fields = _fields.decode(around)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if bytes(fields.get("messages", b"")) != b"[]" or _repeated_key(around, fields) is not None:
        return None
    fields["messages"] = msgspec.Raw(messages)
    return fields


def check_text(text: bytes, max_depth: int) -> None:
    """Not too deep, and every string in it one; values that stay text are passed on without another look."""
    _check_depth(text, max_depth)
    try:
        text.decode()
        if _HALF.search(text):
            msgspec.json.decode(text)  # reads every string, and half of a surrogate pair is in none
    except UnicodeDecodeError:
        raise invalid_json("it is not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_json(_first_words(error)) from None


def check_count(body: bytes) -> None:
    """Refuse a body with more values than anybody means. Readers give nothing back until they have read all of them."""
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= MAX_VALUES:
        return
    if _marks_in(body, _NOT_BEGINNINGS) > MAX_VALUES:
        raise ChatError(
            400, f"The JSON body of your request has more than {MAX_VALUES} values.", code="too_many_values"
        )


def check_fields(body: bytes) -> None:
    """Refuse a body with more fields, in all its objects together, than anybody means. Lists may be as long as they like."""
    if body.count(b":") <= MAX_VALUES:
        return
    if _marks_in(body, _NOT_FIELDS) > MAX_VALUES:
        raise ChatError(
            400, f"The JSON body of your request has more than {MAX_VALUES} fields.", code="too_many_values"
        )


def _marks_in(body: bytes, others: bytes) -> int:
    """Count the bytes of a body outside its strings that are not among `others`, which has no quotation mark."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    marks = plain.translate(None, others).replace(b'""', b"")
    return sum(map(len, marks.split(b'"')[::2]))


def check_whole(parts: Sequence[bytes | msgspec.Raw], max_bytes: int, param: str) -> None:
    """Refuse a request that comes to more, with what was kept of it here, than one may that is sent whole. A few bytes may name
    megabytes, and name them a thousand times."""
    if sum(memoryview(part).nbytes for part in parts) > max_bytes:
        raise ChatError(
            413,
            f"Together with what it goes on from and refers to, the request is larger than {max_bytes} bytes. "
            "Begin a new conversation with what of it still matters.",
            param=param,
            code="request_too_large",
        )
    check_count(b",".join(map(bytes, parts)))


def is_plain(text: bytes, max_depth: int) -> bool:
    """True if a value clearly holds nothing that `check_text` would object to. What is not plain may still be right."""
    if not text.isascii() or b"\\u" in text:
        return False
    return len(text) <= 2 * max_depth or _has_few_brackets(text, max_depth)


def invalid_json(why: str) -> ChatError:
    return ChatError(
        400,
        f"We could not parse the JSON body of your request: {why}. Expected a JSON object with 'model' and 'messages'.",
        code="invalid_json",
    )


def _check_depth(body: bytes, limit: int) -> None:
    if _has_few_brackets(body, limit):
        return  # as most bodies: too few to be too deep, wherever they stand
    # Without escapes every other piece between quotes is a string; nothing but brackets and quotes matters any more,
    # and two quotes without a bracket between them do not either.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    marks = plain.translate(None, _NOT_MARKS).replace(b'""', b"")
    brackets = b"".join(marks.split(b'"')[::2])
    if not _is_within(brackets, limit):
        raise ChatError(
            400, f"The JSON body of your request is nested deeper than {limit} levels.", code="json_too_deep"
        )


def _is_within(brackets: bytes, limit: int) -> bool:
    if len(brackets) > _MANY:
        # In time that does not grow with the depth, and in pieces, between which another thread may go on.
        steps, depth = memoryview(brackets.translate(_STEPS)).cast("b"), 0
        for start in range(0, len(steps), _MANY):
            piece = steps[start : start + _MANY]
            if max(accumulate(piece, initial=depth)) > limit:
                return False
            depth += sum(piece)
        return depth <= 0
    # Each round takes away the innermost brackets, wherever they are.
    brackets = brackets.translate(_ROUND)
    for _ in range(limit):
        if not brackets:
            return True
        brackets = brackets.replace(b"()", b"")
    return not brackets


def _has_few_brackets(body: bytes, limit: int) -> bool:
    """Found one by one: looking for the next is much faster than looking at every byte to count them."""
    left = limit
    for bracket in b"{[":
        place = body.find(bracket)
        while place >= 0:
            left -= 1
            if left < 0:
                return False
            place = body.find(bracket, place + 1)
    return True


def _repeated_key(body: bytes, fields: Fields) -> str | None:
    """The reader keeps the last of equal keys. So the text is walked along the fields: where a value does not stand
    that the reader has, an earlier one was dropped."""
    size = 1 + _AROUND * len(fields) + len("".join(fields)) + len(b"".join(fields.values()))
    # A field that comes again would need what stands around it, its key, and a character for its value.
    room = len(body) - size
    if room <= _AROUND or room <= _AROUND + min(map(len, fields), default=0):
        return None
    place = body.index(b"{") + 1
    for key, text in fields.items():
        member, value = _KEY.match(body, place), bytes(text)
        if member is None or member[1] != key.encode() or not body.startswith(value, member.end()):
            return _first_repeated(body, fields)
        place = member.end() + len(value)
    return None if body[place:].strip(_SPACE) == b"}" else _first_repeated(body, fields)


def _first_repeated(body: bytes, fields: Fields) -> str | None:
    """The same walk for keys spelled in any way, which names the one that comes again."""
    place, seen = _past(body, body.index(b"{") + 1), set[str]()
    while body[place] == 0x22:
        string = _STRINGS.match(body, place)
        assert string is not None, "the reader has read it"
        key = json.loads(string.group())
        place = _past(body, _past(body, string.end()) + 1)
        value = bytes(fields[key])
        if key in seen or not body.startswith(value, place):
            return str(key)
        seen.add(key)
        place = _past(body, place + len(value))
        if body[place] not in b",}":
            return str(key)  # an earlier, longer value that only begins like this one
        place = _past(body, place + 1) if body[place] == 0x2C else place
    return None


def _past(body: bytes, place: int) -> int:
    """Past white space."""
    while body[place] in _SPACE:
        place += 1
    return place


def _first_words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).split("\n", 1)[0].rstrip(".")
