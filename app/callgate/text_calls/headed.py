"""Reads calls with a header: the name between marks of its own, followed by JSON arguments.

DeepSeek V3 and V3.1, Kimi K2, Mistral, Functionary. Each function reads what one mark of `formats` opened.
"""

import re
from dataclasses import replace
from typing import Final

from callgate.calls.names import resolve_name
from callgate.calls.states import Flaw
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import CallObjects, Ends, arguments_written, broken_at, cut_off, read_body
from callgate.text_calls.prose import Prose
from callgate.text_calls.tag_calls import after_equals
from callgate.text_calls.text_cursor import Steps, TextCursor, finder

# Sections ---------------------------------------------------------------------------------------


def section(out: EventSink, call: str, end: str) -> Steps[bool]:
    """Read the mark around all calls, which is prose if no call follows."""
    cursor = out.cursor
    yield from cursor.space()
    mark = yield from cursor.one_of((call, end))
    if mark is None:
        mark = yield from cursor.until(finder((call, end)))
        out.add_call(broken_at(mark))
    cursor.back(mark or "")
    return True


def _header(cursor: TextCursor, end: str, call_end: str) -> Steps[tuple[str | None, str | None]]:
    """Read up to `end`; return the text and the mark that ended it, or no text if that is another mark."""
    pieces: list[str] = []
    mark = yield from cursor.until(finder((end, call_end)), pieces.append)
    return ("".join(pieces).strip() if mark == end else None), mark


# DeepSeek ---------------------------------------------------------------------------------------

DEEPSEEK_CALLS: Final = "<｜tool▁calls▁begin｜>"
DEEPSEEK_CALLS_END: Final = "<｜tool▁calls▁end｜>"
DEEPSEEK_CALL: Final = "<｜tool▁call▁begin｜>"
DEEPSEEK_CALL_END: Final = "<｜tool▁call▁end｜>"
DEEPSEEK_SEPARATOR: Final = "<｜tool▁sep｜>"


def deepseek_v3(out: EventSink) -> Steps[bool]:
    """Read `function<sep>N`, a line break, and JSON in a fence."""
    cursor = out.cursor
    kind, mark = yield from _header(cursor, DEEPSEEK_SEPARATOR, DEEPSEEK_CALL_END)
    if kind is None:
        out.add_call(broken_at(mark))
        return True
    name, mark = yield from _header(cursor, "\n", DEEPSEEK_CALL_END)
    if name is None:
        out.add_call(broken_at(mark))
        return True
    body = yield from read_body(cursor, Ends((DEEPSEEK_CALL_END,), fence_is_layout=True))
    out.add_call(arguments_written(name, body))
    return True


def deepseek_v31(out: EventSink) -> Steps[bool]:
    """Read `N<sep>` and JSON."""
    name, mark = yield from _header(out.cursor, DEEPSEEK_SEPARATOR, DEEPSEEK_CALL_END)
    if name is None:
        out.add_call(broken_at(mark))
        return True
    out.add_call(arguments_written(name, (yield from read_body(out.cursor, Ends((DEEPSEEK_CALL_END,))))))
    return True


# Kimi -------------------------------------------------------------------------------------------

KIMI_CALLS: Final = "<|tool_calls_section_begin|>"
KIMI_CALLS_END: Final = "<|tool_calls_section_end|>"
KIMI_CALL: Final = "<|tool_call_begin|>"
KIMI_CALL_END: Final = "<|tool_call_end|>"
KIMI_ARGUMENTS: Final = "<|tool_call_argument_begin|>"

_COUNTER = re.compile(r":[0-9]+\Z")


def kimi_k2(out: EventSink) -> Steps[bool]:
    """Read `functions.N:I`, which is the call's id as well, and JSON."""
    id, mark = yield from _header(out.cursor, KIMI_ARGUMENTS, KIMI_CALL_END)
    if id is None:
        out.add_call(broken_at(mark))
        return True
    name = _COUNTER.sub("", id).removeprefix("functions.")
    body = yield from read_body(out.cursor, Ends((KIMI_CALL_END,), loose=True))
    if body.flaw is None and body.mark is None and not out.cursor.dry:
        # Its end may be missing where the next call begins, or the section ends.
        if (follows := (yield from out.cursor.one_of((KIMI_CALL, KIMI_CALLS_END)))) is not None:
            out.cursor.back(follows)
        else:
            yield from out.cursor.until(finder((KIMI_CALL_END,)))
            body = replace(body, flaw=Flaw.INVALID_JSON)
    out.add_call(arguments_written(name, body, id=id or None))
    return True


# Solar ------------------------------------------------------------------------------------------

SOLAR_CALL: Final = "<|tool_call:begin|>"
SOLAR_CALL_END: Final = "<|tool_call:end|>"
SOLAR_TOKENS: Final = ("<|content|>", "<|end|>", "<|flush|>", "<|calls|>", "<|tool_calls|>", "<|begin|>assistant")


def solar(out: EventSink) -> Steps[bool]:
    """Read a call of Solar Open before its second release: an id, a name and JSON, each after its own token."""
    id, mark = yield from _header(out.cursor, "<|tool_call:name|>", SOLAR_CALL_END)
    name = None
    if id is not None:
        name, mark = yield from _header(out.cursor, "<|tool_call:args|>", SOLAR_CALL_END)
    if name is None:
        out.add_call(broken_at(mark))
        return True
    body = yield from read_body(out.cursor, Ends((SOLAR_CALL_END,), others=SOLAR_TOKENS))
    out.add_call(arguments_written(name, body, id=id or None))
    return True


# Mistral ----------------------------------------------------------------------------------------

MISTRAL_CALLS: Final = "[TOOL_CALLS]"
MISTRAL_END: Final = "</s>"
_CALL_ID: Final = "[CALL_ID]"
_ARGS: Final = "[ARGS]"
_MISTRAL_ENDS: Final = Ends(others=(MISTRAL_CALLS, MISTRAL_END), loose=True)
_MISTRAL_NAME = re.compile(r"[^\[{\s]*")
_NAME_LIMIT: Final = 256


def mistral(out: EventSink) -> Steps[bool]:
    """Read a list of call objects, or a name, perhaps an id, and JSON."""
    cursor = out.cursor
    yield from cursor.space()
    mark = yield from cursor.one_of((_CALL_ID, _ARGS))
    name: str | None = ""
    if mark is None:
        if (yield from cursor.peek()) in ("[", "{", "`"):
            yield from CallObjects().read(out, _MISTRAL_ENDS)
            return True
        name = yield from cursor.run(_MISTRAL_NAME, _NAME_LIMIT)
        yield from cursor.space()
        if not (yield from cursor.peek()):
            out.add_call(cut_off())
            return True
        mark = yield from cursor.one_of((_CALL_ID, _ARGS))
    id: str | None = None
    if mark == _CALL_ID:
        id = (yield from cursor.run(_MISTRAL_NAME, _NAME_LIMIT)) or None
        yield from cursor.space()
        yield from cursor.one_of((_ARGS,))
    body = yield from read_body(cursor, _MISTRAL_ENDS)
    out.add_call(arguments_written(name, body, id=id))
    out.add_text(body.after)
    return True


def final_token(out: EventSink, token: str) -> Steps[bool]:
    """Read a token that is dropped at the end of the text, and prose elsewhere."""
    pieces = [token]
    yield from out.cursor.space(pieces.append)
    if not out.cursor.dry:
        out.add_text("".join(pieces))
    return True


# Functionary ------------------------------------------------------------------------------------

FUNCTIONARY_MARK: Final = ">>>"
FUNCTION_TAG: Final = "<function="
FUNCTION_END: Final = "</function>"
_ALL: Final = "all"
_RECIPIENT = re.compile(r"[A-Za-z0-9_.:\-]*")


def functionary_v31(out: EventSink) -> Steps[bool]:
    """Read `<function=N>`, JSON, `</function>`."""
    head = yield from after_equals(out.cursor)
    if not head.is_whole:
        return False
    out.add_call(arguments_written(head.name, (yield from read_body(out.cursor, Ends((FUNCTION_END,))))))
    return True


def functionary_v32(out: EventSink) -> Steps[None]:
    """Read `>>>all` and text, `>>>N` and JSON; the first mark may be in the prompt."""
    yield from _functionary_part(out, "")
    prose = Prose(out, FUNCTIONARY_MARK)
    while (mark := (yield from prose.step())) is not None:
        if mark:
            yield from _functionary_part(out, mark)
        elif out.line.is_silent():
            yield from out.cursor.space(out.add_text)
            yield from _functionary_part(out, "")


def _functionary_part(out: EventSink, mark: str) -> Steps[None]:
    cursor = out.cursor
    name = yield from cursor.run(_RECIPIENT, _NAME_LIMIT)
    if not name:
        out.add_text(mark)
        return
    next_char = yield from cursor.peek()
    surely_meant = mark and out.line.indent() == 0
    if next_char == "\n" and name == _ALL:
        cursor.at += 1
    elif next_char == "\n" and (surely_meant or resolve_name(name, out.tools) is not None):
        body = yield from read_body(cursor, Ends(others=(FUNCTIONARY_MARK,), loose=True))
        out.add_call(arguments_written(name, body))
        out.add_text(body.after)
    elif not next_char and surely_meant:
        if not _ALL.startswith(name):
            out.add_call(cut_off())
    else:
        out.add_text(mark + name)


# GLM-4 -----------------------------------------------------------------------------------------

GLM4_OTHERS: Final = ("<|observation|>", "<|user|>")
"""End marks of a call at which the server should have stopped; after them comes a user's or tool's message."""
GLM4_ENDS: Final = ("<|assistant|>", *GLM4_OTHERS)


def glm4(out: EventSink) -> Steps[None]:
    """Read the name of a tool on a line of its own, and JSON on the next."""
    cursor = out.cursor
    prose = Prose(out, "\n")
    mark: str | None = ""
    while mark is not None:
        yield from cursor.space(out.add_text)
        name = yield from cursor.run(_RECIPIENT, _NAME_LIMIT)
        if (
            name
            and out.line.indent() >= 0
            and resolve_name(name, out.tools) is not None
            and (yield from cursor.peek()) == "\n"
            and (yield from cursor.peek(1)) in ("{", "")
        ):
            body = yield from read_body(cursor, Ends(GLM4_ENDS, loose=True))
            out.add_call(arguments_written(name, body))
            out.add_text(body.after)
            out.has_invented_turn = out.has_invented_turn or body.mark in GLM4_OTHERS
            continue
        out.add_text(name or "")
        while (mark := (yield from prose.step())) is not None and mark != "\n" and not out.line.is_silent():
            pass
        out.add_text(mark or "")
