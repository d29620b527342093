"""Reads ReAct: lines that begin with `Thought:`, `Action:`, `Action Input:` or `Final Answer:`.

Only the first action of a text counts. The text after its input (an invented observation and its consequences) is dropped.
"""

from typing import Final

from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import Ends, JsonBody, arguments_written, cut_off, ends_line, read_body
from callgate.text_calls.json_scan import JsonScan, State
from callgate.text_calls.prose import Prose
from callgate.text_calls.text_cursor import Steps, TextCursor, finder

THOUGHT: Final = "Thought:"
ACTION: Final = "Action:"
INPUT: Final = "Action Input:"
OBSERVATION: Final = "Observation:"
ANSWER: Final = "Final Answer:"

_INPUT_ENDS: Final = Ends(others=(OBSERVATION, THOUGHT, ACTION, ANSWER), loose=True, fence_is_layout=True)


def read_react(out: EventSink) -> Steps[None]:
    """Read the lines of the format."""
    cursor = out.cursor
    prose = Prose(out, "\n")
    is_thought = False
    while not cursor.dry:
        sink = out.add_reasoning if is_thought else out.add_text
        yield from cursor.space(sink, same_line=True)
        label = yield from cursor.one_of((THOUGHT, ACTION, ANSWER))
        is_quoted = label is not None and out.quoted() is not None
        if label == ACTION:
            out.add_call((yield from _action(cursor)))
            is_thought = False
        elif label and is_quoted:
            out.add_text(label)
            yield from _line(out, prose, is_thought=False)
        elif label == ANSWER:
            while (mark := (yield from prose.step())) is not None:
                out.add_text(mark)
        else:
            is_thought = is_thought or label == THOUGHT
            yield from _line(out, prose, is_thought=is_thought)


def _line(out: EventSink, prose: Prose, *, is_thought: bool) -> Steps[None]:
    """Read the rest of a line without a label."""
    if is_thought:

        def add(text: str) -> None:
            out.is_spoilt = out.is_spoilt or "{" in text  # perhaps a call in the reasoning, with others in its input
            out.add_reasoning(text)

        if (yield from out.cursor.until(finder(("\n",)), add)) is not None:
            out.add_reasoning("\n")
        return
    while (mark := (yield from prose.step())) is not None:
        out.add_prose(mark)
        if mark or out.line.indent() >= 0:
            return


def _action(cursor: TextCursor) -> Steps[CallWritten]:
    pieces: list[str] = []
    if (yield from cursor.until(finder(("\n",)), pieces.append)) is None:
        return cut_off()
    name = "".join(pieces).strip()
    yield from cursor.space()
    if (yield from cursor.one_of((INPUT,))) is None:
        return cut_off(name)
    body = yield from read_body(cursor, _INPUT_ENDS)
    # The input has to end its line.
    if body.flaw is None and body.mark is None and "\n" not in body.after and not (yield from ends_line(cursor)):
        return cut_off(name, flaw=Flaw.INVALID_JSON)
    if body.scan.state is State.CLOSED and not _is_for_the_gate(body):
        return cut_off(name, flaw=Flaw.INVALID_JSON)
    return arguments_written(name, body)


def _is_for_the_gate(body: JsonBody) -> bool:
    """True for an object, one encoded as a string, or null; other JSON is no input of an action."""
    if body.scan.kind == '"':
        inside = JsonScan()
        inside.feed(body.text[1:-1].replace("\\", ""), 0)
        return inside.kind == "{"
    return body.scan.kind == "{" or body.text == "null"
