"""Feeding readers, and texts that are hard on them."""

import functools
import inspect
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from callgate.conversation.events import ModelEvent, ReasoningDelta, TextDelta
from callgate.text_calls.reader import reader_for
from tests.chaos.scale import scaled

TOOLS = ("get_weather", "get_time", "write_file", "search_docs", "create_ticket")
CASES = Path(__file__).parents[1] / "corpus" / "text"


def batched(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but as one test, which goes through all values and reports each that fails."""
    keys = (names,) if isinstance(names, str) else names
    rows = [(value,) if isinstance(names, str) else value for value in values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures: list[Exception] = []
            for row in rows:
                try:
                    test(**dict(zip(keys, row, strict=True)), **fixtures)
                except Exception as failure:  # noqa: BLE001 all of them are reported below
                    failure.add_note(f"for {dict(zip(keys, row, strict=True))!r:.500}")
                    failures.append(failure)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(rows)} fail", failures)

        signature = inspect.signature(test)
        left_over = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left_over)  # type: ignore[attr-defined]
        del run.__wrapped__
        return run

    return decorate


def events_of_text(format: str, pieces: Iterable[str], *, whole: bool = False) -> list[ModelEvent]:
    """The events of a text that comes in these pieces; consecutive text deltas become one event."""
    reader = reader_for(format, TOOLS, thinking="unknown" if whole else "none")
    events: list[ModelEvent] = []
    for piece in pieces:
        events += reader.feed(piece)
    return merged(events + reader.finish())


def merged(events: Iterable[ModelEvent]) -> list[ModelEvent]:
    found: list[ModelEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            found[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            found[-1] = ReasoningDelta(last.text + event.text, source="text")
        else:
            found.append(event)
    return found


def text_of_events(events: Iterable[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def corpus_texts() -> Iterator[tuple[str, str, str]]:
    """Id, format and text of every case."""
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        yield case["id"], case["format"], case.get("text") or "".join(case["text_chunks"])


def cuts(text: str, places: Iterable[int]) -> list[str]:
    at = [0, *sorted(places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(at)]


def cut_everywhere(text: str, step: int = 1) -> Iterator[list[str]]:
    """The text in three pieces, so that it is cut once at every place, or every step, with the other cut half a text away. At one
    place of five in a short run."""
    step = scaled(5 * step, step)
    half = (len(text) + step) // (2 * step) * step
    for at in range(1, half + 1, step):
        yield cuts(text, {at, min(at + half, len(text))})


A = "antml" + ":"

# Marks and halves of marks of every format, JSON and halves of JSON, and what looks like either.
SCRAPS = [
    *"{}[]\"\\,:;<>()='`~ \n",
    *("\n\n", "</", "a", "x y", "0", "-1.5", "true", "null", "NaN", "None", "é", "\ud83d", "\ude00"),
    *("```", "```json\n", "\n```\n", "~~~", '{"name":', '"arguments": {}', '"parameters":{"a":1}', '"get_weather"'),
    *('{"name": "get_weather", "arguments": {"city": "A"}}', '{"name": "nope", "arguments": {}}'),
    *("get_weather", "get_time", "<tool_call>", "</tool_call>", "<|tool_call|>", "functools[", "<think>", "</think>"),
    *("<thinking>", "</thinking>", "<function_calls>", "</function_calls>", f"<{A}function_calls>"),
    *('<invoke name="get_weather">', "<invoke", "</invoke>", f'<{A}invoke name="get_time">', f"</{A}invoke>"),
    *('<parameter name="city">', "</parameter>", f'<{A}parameter name="q">', f"</{A}parameter>"),
    *("<![CDATA[", "]]>", "<!--", "-->", "<minimax:tool_call>", "</minimax:tool_call>"),
    *("<｜DSML｜function_calls>", '<｜DSML｜invoke name="get_time">', '<｜DSML｜parameter name="a" string="false">'),
    *("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"),
    *("<function=get_weather>", "<function=zzz>", "</function>", "<parameter=city>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "</s>", "[THINK]", "[/THINK]"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.get_weather:0", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<|tool_calls_section_end|>", ">>>", ">>>all\n", ">>>get_time\n", "all\n"),
    *("<|START_ACTION|>", "<|END_ACTION|>", '"tool_name": "get_time"', "<|START_THINKING|>", "<|END_THINKING|>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>", "analysis", "commentary"),
    *(" to=functions.get_weather", "assistant", "final", "<|tool_call>", "call:get_time{", "<tool_call|>", '<|"|>'),
    *("<|channel>thought", "<channel|>", "<|python_tag|>", "<|eom_id|>", "<|python_start|>", "<|python_end|>"),
    *('[get_weather(city="x")]', "[get_time(", "Thought:", "Action:", "Action Input:", "Observation:"),
    *("Final Answer:", "\nAction: get_time\n"),
    *("<tool_calls>", "</tool_calls>", "<TOOLCALL>[", "</TOOLCALL>", "<|tools_prefix|>[", '{"get_time": {}}'),
    *("<|action_start|>", "<|plugin|>", "<|action_end|>", "<function_call>", "Action: ```json\n"),
    *(
        "<|message_sep|>",
        "function call<|role_sep|>\n",
        "<|function_call|>",
        "<longcat_tool_call>",
        "<longcat_arg_key>",
    ),
    *(
        "<|message_model|>",
        "<|content_invoke_tool_json|>",
        "<|content_thinking|>",
        "<|end_message|>",
        "<|content_text|>",
    ),
    *(
        "<tool_sep>",
        "<|tool_call:start|>",
        "<|tool_arg:start|>",
        "<|tool_arg:value|>",
        "<|tool_arg:end|>",
        "<|tool_call:end|>",
    ),
    *("<seed:tool_call>", "</seed:tool_call>", '<function name="get_time">', '<param name="city">', "</param>"),
    *("<｜tool_calls_begin｜>", '<steptml:invoke name="get_time">', "</steptml:invoke>", "<dots_function_call>", '"/>'),
    *("<|open|>tools<|sep|>", '<|open|>call tool="get_time"<|sep|>', "<|open|>argument", "<|close|>argument<|sep|>"),
    *("<|close|>call<|sep|>", "]<]minimax[>[", "<item>", "</item>", '<invoke name="get_weather"', "</invoke>"),
    *(" to=self<|message|>", "<|eom|>", "<atem:function_calls>", '<atem:invoke name="get_time.get_time">'),
    *("<start_function_call>call:get_time{", "<escape>", "<end_function_call>", "get_time()\n", "get_time\n{"),
    *("[BEGIN FINAL RESPONSE]", "<｜DSML｜ calls>", '<｜DSML｜ invoke name="get_time"/>', "<response>"),
]


def mutated(text: str, chance: random.Random) -> str:
    """A text with pieces taken out, put in, or cut off."""
    pieces = re.findall(r"<[^<>\s]{1,40}>|\w+|\s+|.", text, re.DOTALL)
    for _ in range(chance.randint(0, 5)):
        at = chance.randrange(len(pieces) + 1)
        match chance.randrange(4):
            case 0:
                del pieces[at : at + chance.randint(1, 3)]
            case 1 | 2:
                pieces.insert(at, chance.choice(SCRAPS))
            case _:
                del pieces[max(at, 1) :]
    return "".join(pieces)


# Texts that are all one thing, after an opening that makes a reader expect something.
FLOODS = {
    "openings of a call": ("", "<tool_call"),
    "calls that open": ("", "<tool_call>"),
    "braces": ("", "{"),
    "objects in objects": ("", '{"a":\n'),
    "brackets": ("", "["),
    "quotes": ("", '"'),
    "angle brackets": ("", "<"),
    "fences": ("", "```"),
    "fences on lines": ("", "```\n"),
    "line breaks": ("", "\n"),
    "blanks": ("", " "),
    "tags that never end": ("", '<invoke name="'),
    "think tags": ("", "<think></think>"),
    "wrappers": ("", "<function_calls>"),
    "function tags": ("", "<function=get_weather>"),
    "headers": ("", "<|channel|> to=functions.x"),
    "calls of the bare kind": ("", '{"name":"get_weather","arguments":'),
    "a list of calls": ("[", '{"name":"get_weather","arguments":{}},'),
    "an object with many keys": ("{", '"a":1,'),
    "brackets in arguments": ('<tool_call>{"name":"get_weather","arguments":', "["),
    "escapes in a string": ('<tool_call>{"name":"get_weather","arguments":"', '\\"'),
    "digits": ('<tool_call>{"name":"get_weather","arguments":', "1"),
    "a python list": ("[", "get_weather(city=["),
    "a python string": ('[get_weather(city="', "\\"),
    "parameters": ('<function_calls><invoke name="get_weather">', '<parameter name="a">x</parameter>'),
    "a value": ('<function_calls><invoke name="get_weather"><parameter name="a">', "</parameter"),
    "a DeepSeek section": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    "a Gemma call": ("<|tool_call>call:get_weather{a:", '<|"|>{'),
    "a harmony body": ("<|channel|>commentary to=functions.get_weather<|message|>", '{"a":"'),
    "an action": ("Action: get_weather\nAction Input: ", '{"a":'),
    "thoughts": ("", "Thought: a\n"),
    "tags in tags": (']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_weather">', "]<]minimax[>[<a>"),
    "rows of objects": ("<tool_calls>", '{"name":"get_time"}\n'),
    "keys without values": ("<tool_call>get_weather", "<arg_key>a</arg_key>"),
    "names on lines": ("", "get_weather\n"),
    "calls on lines": ("<function_calls>", "get_weather(city='a')\n"),
    "headers of blocks": ("", "<|message_model|>get_time"),
    "separators of messages": ("", "<|message_sep|>\n\n"),
    "attributes": ("<|open|>tools<|sep|><|open|>call", ' a="b"'),
    "recipients": ("", ">>>all"),
}


def flood(kind: str, size: int) -> str:
    opening, unit = FLOODS[kind]
    return (opening + unit * (size // len(unit) + 1))[:size]


def cpu_seconds(format: str, text: str, step: int, tries: int) -> float:
    """The least CPU time a reader took for a text in pieces of `step` characters."""
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    times = []
    for _ in range(tries):
        reader = reader_for(format, TOOLS)
        start = time.process_time()
        for piece in pieces:
            reader.feed(piece)
        reader.finish()
        times.append(time.process_time() - start)
    return min(times)
