"""ReAct: lines that begin with `Thought:`, `Action:`, `Action Input:` or `Final Answer:`.

Only the first action of a text counts. What follows its input (an observation the model invented, and all it
concluded from that) is dropped.
"""

from typing import Final

from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink, Prose
from callgate.text_calls.json_calls import Body, Ends, arguments_written, cut_off, read_body, skip_all
from callgate.text_calls.json_scan import JsonScan, State
from callgate.text_calls.text_cursor import Steps, TextCursor, finder

THOUGHT: Final = "Thought:"
ACTION: Final = "Action:"
INPUT: Final = "Action Input:"
OBSERVATION: Final = "Observation:"
ANSWER: Final = "Final Answer:"

_INPUT_ENDS: Final = Ends(others=(OBSERVATION, THOUGHT, ACTION, ANSWER), loose=True, fence_is_layout=True)


def read_react(talk: EventSink) -> Steps[None]:
    """The whole grammar."""
    tape = talk.tape
    prose = talk.prose("\n")
    is_thought = False
    while not tape.dry:
        sink = talk.think if is_thought else talk.say
        yield from tape.space(sink, same_line=True)
        label = yield from tape.one_of((THOUGHT, ACTION, ANSWER))
        if label == ACTION:
            talk.call((yield from _action(tape)))
            yield from skip_all(tape)
        elif label == ANSWER:
            while (mark := (yield from prose.step())) is not None:
                talk.say(mark)
        else:
            is_thought = is_thought or label == THOUGHT
            yield from _line(talk, prose, is_thought=is_thought)


def _line(talk: EventSink, prose: Prose, *, is_thought: bool) -> Steps[None]:
    """The rest of a line that has no label."""
    if is_thought:
        if (yield from talk.tape.until(finder(("\n",)), talk.think)) is not None:
            talk.think("\n")
        return
    while (mark := (yield from prose.step())) is not None:
        talk.say(mark)
        if mark or talk.indent >= 0:
            return


def _action(tape: TextCursor) -> Steps[CallWritten]:
    pieces: list[str] = []
    if (yield from tape.until(finder(("\n",)), pieces.append)) is None:
        return cut_off()
    name = "".join(pieces).strip()
    yield from tape.space()
    if (yield from tape.one_of((INPUT,))) is None:
        return cut_off(name)
    body = yield from read_body(tape, _INPUT_ENDS)
    if body.flaw is None and not (yield from _is_alone(tape, body)):
        return cut_off(name, flaw=Flaw.INVALID_JSON)
    if body.scan.state is State.CLOSED and not _is_for_the_gate(body):
        return cut_off(name, flaw=Flaw.INVALID_JSON)
    return arguments_written(name, body)


def _is_alone(tape: TextCursor, body: Body) -> Steps[bool]:
    """Nothing else stands on the line on which the input ends."""
    return body.mark is not None or "\n" in body.after or not (yield from tape.peek())


def _is_for_the_gate(body: Body) -> bool:
    """An object, one encoded as a string, or null; other JSON is no input of an action."""
    if body.scan.kind == '"':
        inside = JsonScan()
        inside.feed(body.text[1:-1].replace("\\", ""), 0)
        return inside.kind == "{"
    return body.scan.kind == "{" or body.text == "null"
