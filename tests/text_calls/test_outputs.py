"""What models of each family write: answers, thinking, calls, quoted calls, mentions of marks and cut-off ends; and what runs.

`outputs.json` has a model's name, its text, and the calls in it that are meant, judged by hand. The name says what format the text is
read in and how its thinking is, as `auto` does. A text is read whole, letter by letter and in pieces of other sizes.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from callgate.conversation.events import CallWritten, ModelEvent, TextDelta
from callgate.conversation.finish import classify
from callgate.conversation.finish_words import FinishClass
from callgate.text_calls.families import _FAMILIES, known_format
from callgate.text_calls.reader import reader_for
from callgate.text_calls.thinking import ThinkingMemory
from tests.text_calls.reading import cut_everywhere

TOOLS = {"get_weather": ("city",), "search": ("query",), "write_file": ("path", "content"), "delete_all": ("path",)}
SIZES = (1, 2, 3, 5, 8, 13, 34)
OUTPUTS: dict[str, list[dict[str, Any]]] = defaultdict(list)
for _output in json.loads((Path(__file__).parent / "outputs.json").read_text(encoding="utf-8")):
    OUTPUTS[_output["model"]].append(_output)


def events_of_output(output: dict[str, Any], pieces: Iterable[str], *, streams: bool) -> list[ModelEvent]:
    format = known_format(output["model"])
    assert format is not None
    reader = reader_for(format, TOOLS, thinking=ThinkingMemory(output["model"]).mode(streams=streams))
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.finish(in_order=classify(output["finish_reason"]) <= FinishClass.TOOL_CALLS)


def runnable_calls(events: Iterable[ModelEvent]) -> list[list[Any]]:
    """Names and arguments of the calls that are whole and alone, as far as a reader can say."""
    calls = [event for event in events if isinstance(event, CallWritten) and event.flaw is None and event.is_alone]
    read_arguments = [
        json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments for call in calls
    ]
    return [[call.name, arguments] for call, arguments in zip(calls, read_arguments, strict=True)]


def pieces(text: str, size: int) -> Iterable[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


@pytest.mark.parametrize("model", sorted(OUTPUTS))
def test_what_a_model_means_runs_and_nothing_else(model):
    for output in OUTPUTS[model]:
        assert runnable_calls(events_of_output(output, [output["text"]], streams=False)) == output["runs"], output[
            "kind"
        ]
        for size in SIZES:
            streamed = runnable_calls(events_of_output(output, pieces(output["text"], size), streams=True))
            assert streamed == output["runs"], (output["kind"], size)


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(OUTPUTS))
def test_the_same_runs_wherever_the_text_is_cut(model):
    for output in OUTPUTS[model]:
        text = output["text"]
        for pieces_of_it in cut_everywhere(text):
            assert runnable_calls(events_of_output(output, pieces_of_it, streams=True)) == output["runs"], (
                output["kind"],
                pieces_of_it,
            )


def test_each_familys_format_is_among_them():
    assert {format for _, format in _FAMILIES} - {known_format(model) for model in OUTPUTS} <= {"inkling", "muse"}


def test_thinking_behind_calls_is_not_shown_as_text_too():
    call = '<function=delete_all>{"path": "/srv/data"}</function>'
    broken = '<function=delete_all>{"path": /srv/data"<function=get_weather>}</function>'
    text = f"a\n</think>\n{call}I could\n{broken}\nbut <think>I won't.\n</think>\nNo."
    output = {"model": "meetkai/functionary-medium-v3.1", "finish_reason": "stop"}
    for at in range(1, len(text)):
        events = events_of_output(output, [text[:at], text[at:]], streams=True)
        assert "I won't" not in "".join(event.text for event in events if isinstance(event, TextDelta)), at
