"""Reads formats in which all text is messages, `header<|message|>body`, with a role and perhaps a channel or a recipient.

In Harmony, the format of gpt-oss, a body for `functions.N` is the arguments of a call, one on the channel `analysis` is
reasoning, any other is prose. Muse sends reasoning to `self` and prose to `user`; a body for any other recipient has calls as
tags.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import Ends, arguments_written, broken_at, cut_off, read_body
from callgate.text_calls.prose import Prose
from callgate.text_calls.tag_calls import Tags, prefixed
from callgate.text_calls.text_cursor import Steps, finder

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
CONSTRAIN: Final = "<|constrain|>"
MESSAGE: Final = "<|message|>"
CALL_END: Final = "<|call|>"

PEOPLE: Final = frozenset({"assistant", "user", "all"})
"""Recipients that are no tools."""

_HEADER_WORDS: Final = frozenset({"assistant", "analysis", "commentary", "final"})
_WORD = re.compile(r"[A-Za-z0-9_.=:\-]*")
_HEADER_LINE = re.compile(r"[^<\n]*")
_HEADER_LIMIT: Final = 128
"""The longest header whose first token is in the prompt; a longer text without a token is prose."""

_RECIPIENT = re.compile(r"(?:^|[\s>])to=([^\s<]*)")
_ANOTHERS = re.compile(r"<\|start\|>\s*(?:user|system|developer|tool|functions\.)")
"""The header of a user's, system or tool's message."""
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class Framing:
    """The end marks of a format's messages, and the kind of their bodies."""

    ends: tuple[str, ...]
    read_body: Callable[[EventSink, str], Steps[None]]
    """Reads the body after a header; unread text is prose."""

    @property
    def tokens(self) -> tuple[str, ...]:
        return (START, CHANNEL, CONSTRAIN, MESSAGE, *self.ends)


def read_messages(out: EventSink, framing: Framing) -> Steps[None]:
    """Read messages. Text outside of messages is prose."""
    prose = Prose(out, *framing.tokens)
    yield from _prefilled_header(out, framing)
    while (mark := (yield from prose.step())) is not None:
        if mark in framing.ends:
            if mark != CALL_END:
                out.begin_message()
            yield from _prefilled_header(out, framing, behind=mark)
        elif mark:
            yield from _message(out, framing, mark)


def _prefilled_header(out: EventSink, framing: Framing, behind: str = "") -> Steps[None]:
    """Read a header whose beginning is in the prompt, such as ` to=functions.N<|channel|>`; after the end of a message
    (`behind`) a single word of a header may also come alone. Anything else is prose."""
    cursor = out.cursor
    pieces: list[str] = []
    yield from cursor.space(pieces.append)
    word = (yield from cursor.run(_WORD, _HEADER_LIMIT)) or ""
    pieces.append(word)
    if word in _HEADER_WORDS or word.startswith("to="):
        pieces.append((yield from cursor.run(_HEADER_LINE, _HEADER_LIMIT)) or "")
        token = yield from cursor.one_of((CHANNEL, CONSTRAIN, MESSAGE))
        if token is not None:
            yield from _message(out, framing, "".join(pieces) + token, token)
            return
        if behind and "".join(pieces).strip() == word:
            if (yield from cursor.one_of((START,))) is not None:
                cursor.back(START)
                return
            if cursor.dry:
                return
    out.add_text("".join(pieces))


def _message(out: EventSink, framing: Framing, begun: str, token: str = "") -> Steps[None]:
    """Read a message of which `begun` was read; prose in it stays unread."""
    token = token or begun
    if begun == MESSAGE:
        out.is_spoilt = True  # the header is prose: the text is about messages, perhaps with others in it
    pieces = [begun]
    while token != MESSAGE:
        mark = yield from out.cursor.until(finder(framing.tokens), pieces.append)
        if mark is None or mark in framing.ends:
            if _recipient("".join(pieces)) not in (None, *PEOPLE):
                out.add_call(cut_off())
            return
        if mark == START:
            pieces.clear()
        pieces.append(mark)
        token = mark
    if _ANOTHERS.search("".join(pieces)):
        out.has_invented_turn = True
    yield from framing.read_body(out, "".join(pieces))


def _recipient(header: str) -> str | None:
    match = _RECIPIENT.search(header)
    if match:
        return match.group(1)
    return None


def _reasoning(out: EventSink, framing: Framing) -> Steps[None]:
    mark = yield from out.cursor.until(finder((START, *framing.ends)), out.add_reasoning)
    if mark == START:
        out.cursor.back(mark)


# Harmony --------------------------------------------------------------------------------------------------------------


def _harmony_body(out: EventSink, header: str) -> Steps[None]:
    recipient = _recipient(header)
    if recipient is not None and recipient not in PEOPLE:
        body = yield from read_body(out.cursor, Ends(others=(START, *HARMONY.ends)))
        out.add_call(arguments_written(recipient.removeprefix("functions."), body))
    elif _CHANNEL_NAME.findall(header)[-1:] == ["analysis"]:  # of several, the last one is meant
        yield from _reasoning(out, HARMONY)


HARMONY: Final = Framing(("<|end|>", CALL_END, "<|return|>"), _harmony_body)

# Muse -----------------------------------------------------------------------------------------------------------------

MUSE_CALLS: Final = "<atem:function_calls>"


def _without_namespace(name: str, tools: Collection[str]) -> str:
    """Remove the namespace from a name; for a tool without one it is the tool's own name."""
    namespace, _, name_in_it = name.partition(".")
    if namespace == name_in_it and name not in tools:
        return name_in_it
    return name


MUSE_TAGS: Final = Tags(
    replace(prefixed("atem:", {MUSE_CALLS: "</atem:function_calls>"}), rename=_without_namespace, undeclared_json=True)
)


def _muse_body(out: EventSink, header: str) -> Steps[None]:
    recipient = _recipient(header)
    if recipient == "self":
        yield from _reasoning(out, MUSE)
    if recipient in (None, "self", "user"):
        return
    marks = (MUSE_CALLS, MUSE_TAGS.vocabulary.call)
    mark = yield from out.cursor.until(finder((*marks, START, *MUSE.ends)))
    if mark == MUSE_CALLS:
        yield from MUSE_TAGS.wrapped(out, mark)
    elif mark == MUSE_TAGS.vocabulary.call:
        yield from MUSE_TAGS.bare(out)
    else:
        out.add_call(broken_at(mark, recipient if mark else None))
        out.cursor.back(mark or "")


MUSE: Final = Framing(("<|eom|>", "<|eot|>"), _muse_body)
