"""Harmony, the format of gpt-oss: `header<|message|>body`, messages with a role, a channel and perhaps a recipient.

A body sent to `functions.N` is the arguments of a call, one on the channel `analysis` is reasoning, any other is prose.
"""

import re
from typing import Final

from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import Ends, arguments_written, cut_off, read_body
from callgate.text_calls.text_cursor import Steps, finder

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
CONSTRAIN: Final = "<|constrain|>"
MESSAGE: Final = "<|message|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
TOKENS: Final = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)

PEOPLE: Final = frozenset({"assistant", "user", "all"})
"""Recipients that are no tools."""

_HEADER_WORDS: Final = frozenset({"assistant", "analysis", "commentary", "final"})
_WORD = re.compile(r"[A-Za-z0-9_.=:\-]*")
_HEADER_LINE = re.compile(r"[^<\n]*")
_HEADER_LIMIT: Final = 128
"""A header whose first token the prompt wrote is no longer than this; without a token by then it is prose."""

_RECIPIENT = re.compile(r"(?:^|[\s>])to=([^\s<]*)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([A-Za-z]*)")


def read_harmony(out: EventSink) -> Steps[None]:
    """The whole grammar. Text outside of all messages is prose as well."""
    prose = out.prose(*TOKENS)
    yield from _prefilled_header(out)
    while (mark := (yield from prose.step())) is not None:
        if mark in ENDS:
            yield from _prefilled_header(out)
        elif mark:
            yield from _message(out, mark)


def _prefilled_header(out: EventSink) -> Steps[None]:
    """A header whose beginning the prompt wrote, such as ` to=functions.N<|channel|>`. Anything else is prose."""
    cursor = out.cursor
    held: list[str] = []
    yield from cursor.space(held.append)
    word = (yield from cursor.run(_WORD, _HEADER_LIMIT)) or ""
    held.append(word)
    if word in _HEADER_WORDS or word.startswith("to="):
        held.append((yield from cursor.run(_HEADER_LINE, _HEADER_LIMIT)) or "")
        token = yield from cursor.one_of((CHANNEL, CONSTRAIN, MESSAGE))
        if token is not None:
            yield from _message(out, "".join(held) + token, token)
            return
    out.add_text("".join(held))


def _message(out: EventSink, begun: str, token: str = "") -> Steps[None]:
    """A message of which `begun` was read; prose in it is left to be read as such."""
    token = token or begun
    pieces = [begun]
    while token != MESSAGE:
        mark = yield from out.cursor.until(finder(TOKENS), pieces.append)
        if mark is None or mark in ENDS:
            if _recipient("".join(pieces)) is not None:
                out.add_call(cut_off())
            return
        if mark == START:
            pieces.clear()
        pieces.append(mark)
        token = mark
    yield from _body(out, "".join(pieces))


def _body(out: EventSink, header: str) -> Steps[None]:
    recipient = _recipient(header)
    if recipient is not None:
        body = yield from read_body(out.cursor, Ends(ENDS, others=(START,)))
        out.add_call(arguments_written(recipient.removeprefix("functions."), body))
        return
    channel = _CHANNEL_NAME.search(header)
    if channel is not None and channel.group(1) == "analysis":
        mark = yield from out.cursor.until(finder((START, *ENDS)), out.add_reasoning)
        if mark == START:
            out.cursor.back(mark)


def _recipient(header: str) -> str | None:
    found = _RECIPIENT.search(header)
    return found.group(1) if found and found.group(1) not in PEOPLE else None
