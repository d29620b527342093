"""However an answer is cut on its way, the same calls come of it; and half an answer runs nothing that the whole would not.

From the body of a provider's answer to the settled turn, through the model that a request uses: the direct one for native
calls, a prompted one around it for calls in the text. The parts have properties of their own beside them.
"""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import BrokenOff
from callgate.conversation.events import StreamEnd
from callgate.conversation.ports import Model, ModelAnswer, ModelRequest
from callgate.conversation.turn import Turn, TurnBuilder
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines, TakeRead
from callgate.models.direct.model import DirectModel, Endpoint
from callgate.text_calls.prompted import PromptedModel
from callgate.text_calls.prompts import FORMATS
from tests.chaos.scale import examples
from tests.corpus.judge import Case, cases, offer_of, verdict
from tests.text_calls.reading import SCRAPS, mutated

CASES = list(cases())
STREAMS = [case for case in CASES if "chunks" in case.data]
TEXTS = [case for case in CASES if "format" in case.data]
TOOLS = {tool["function"]["name"]: tool for case in CASES for tool in case.data["tools"]}
DONE = b"data: [DONE]\n\n"


# A provider in memory -------------------------------------------------------------------------------------------------


class Body:
    """What a provider answers, in these reads; the connection then closes."""

    status = 200

    def __init__(self, reads: Iterable[bytes]) -> None:
        self._reads = reads

    def headers(self) -> Mapping[str, str]:
        return {"content-type": "text/event-stream"}

    def content_type(self) -> bytes:
        return b"text/event-stream"

    def is_coming(self, most: int) -> bool:
        return False

    def whole(self) -> None:
        """It comes read by read."""

    async def chunks(self) -> AsyncIterator[bytes]:
        for data in self._reads:
            yield data

    def hand_to(self, take: TakeRead) -> None:
        """Whoever iterates reads all."""

    async def read(self, limit: int) -> bytes:
        return b"".join(self._reads)[:limit]

    def settle(self) -> None:
        """There is no connection to give back."""

    leave = settle


class Network:
    def __init__(self, reads: Iterable[bytes]) -> None:
        self._reads = list(reads)

    def head_of(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        """There is nobody to send it to."""

    async def exchange(self, request: None, body: bytes, deadlines: Deadlines) -> Body:
        return Body(self._reads)

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines) -> Body:
        return Body(self._reads)

    async def close(self) -> None:
        """Nothing is open."""


def direct(reads: Iterable[bytes]) -> Model:
    return DirectModel(
        "m", Endpoint("http://127.0.0.1/v1/chat/completions", "m"), cast(HttpClient, Network(reads)), Deadlines()
    )


def turn_of(model: Model, tools: Sequence[Mapping[str, Any]], *, stream: bool = True) -> Turn:
    """The turn as the loop would have it."""
    schemas = tuple(msgspec.Raw(msgspec.json.encode(tool)) for tool in tools)
    ask = ModelRequest(messages=({"role": "user", "content": "Go on."},), tools=schemas, stream=stream)
    return asyncio.run(_turn(model.send(ask), tools))


async def _turn(asking: AbstractAsyncContextManager[ModelAnswer], tools: Sequence[Mapping[str, Any]]) -> Turn:
    building = TurnBuilder(
        offer=offer_of(list(map(dict, tools))), ids=map("made_{}".format, itertools.count()).__next__
    )
    end = StreamEnd.DONE
    try:
        async with asking as answer:
            async for events in answer:
                building.feed(events)
    except BrokenOff as broke:
        end = StreamEnd.ERROR if broke.transport_error else StreamEnd.EOF
    return building.finish(end)


def content_of(turn: Turn) -> Any:
    """All of a turn but the batches it came in."""
    return turn.text, turn.reasoning, turn.calls, turn.findings, turn.failure, turn.assistant_message()


def ready(turn: Turn) -> list[tuple[str, str]]:
    return [(call.name, json.dumps(call.arguments)) for call in turn.calls if isinstance(call, ReadyCall)]


def body_of(case: Case, chunks: int | None = None) -> bytes:
    """The case as it stands on the wire, or its first chunks."""
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in case.data["chunks"][:chunks])


def cut(data: Any, places: Iterable[int]) -> list[Any]:
    at = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(at)]


PLACES = st.lists(st.integers(0, 1 << 20), max_size=8)


# Native calls ---------------------------------------------------------------------------------------------------------


# A body of which the first event is the provider's error is refused, and makes no turn.
SPOKEN = [case for case in STREAMS if case.id != "s078-error-object-only"]


@settings(max_examples=examples(150), deadline=None)
@given(case=st.sampled_from(SPOKEN), places=PLACES)
def test_no_cut_of_a_body_changes_the_turn(case: Case, places: list[int]) -> None:
    body = body_of(case) + DONE
    whole = turn_of(direct([body]), case.data["tools"])
    assert content_of(turn_of(direct(cut(body, places)), case.data["tools"])) == content_of(whole)


def test_a_body_that_comes_byte_by_byte_makes_the_same_turn() -> None:
    case = next(case for case in STREAMS if case.id == "s056-literal-surrogates-split")
    body = body_of(case) + DONE
    assert content_of(turn_of(direct([bytes([byte]) for byte in body]), case.data["tools"])) == content_of(
        turn_of(direct([body]), case.data["tools"])
    )


def is_snapshots(case: Case) -> bool:
    """Whether fragments repeat what came before: what is cut smaller repeats it no more, and means something else."""
    pieces = [piece for _, piece in continuations(case) if piece.strip()]
    return any(after.startswith(before) for before, after in itertools.pairwise(pieces) if len(before) > 1)


def continuations(case: Case) -> list[tuple[dict[str, Any], str]]:
    """The fragments that do nothing but go on with a call's arguments."""
    found = []
    for chunk in case.data["chunks"]:
        for choice in chunk.get("choices") or ():
            for call in _entries(choice):
                if not isinstance(call, dict) or call.get("id") or call.get("extra_content"):
                    continue
                function = call.get("function") or {}
                if (
                    isinstance(function, dict)
                    and not function.get("name")
                    and isinstance(function.get("arguments"), str)
                ):
                    found.append((call, function["arguments"]))
    return found


def _entries(choice: Any) -> list[Any]:
    calls = (choice.get("delta") or {}).get("tool_calls")
    return calls if isinstance(calls, list) else []


def recut(case: Case, chance: random.Random) -> Case:
    """The case with each fragment that only goes on with arguments cut into several."""
    data = json.loads(json.dumps(case.data))
    for chunk in data["chunks"]:
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if _entries(choice):
                delta["tool_calls"] = [piece for call in delta["tool_calls"] for piece in _pieces(call, chance)]
    return Case(case.path, data)


def _pieces(call: Any, chance: random.Random) -> list[Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if (
        not isinstance(function, dict)
        or not function
        or call.get("id")
        or call.get("extra_content")
        or function.get("name")
    ):
        return [call]
    text = function.get("arguments")
    if not isinstance(text, str) or len(text) < 2:
        return [call]
    places = [chance.randrange(len(text)) for _ in range(chance.randint(1, 4))]
    return [{**call, "function": {**function, "arguments": piece}} for piece in cut(text, places) if piece]


FRAGMENTED = [case for case in STREAMS if continuations(case) and not is_snapshots(case)]


@settings(max_examples=examples(150), deadline=None)
@given(case=st.sampled_from(FRAGMENTED), seed=st.integers(0, 1 << 32))
def test_fragments_of_a_case_that_are_cut_smaller_come_to_what_the_case_says(case: Case, seed: int) -> None:
    assert verdict(recut(case, random.Random(seed))) == []


@pytest.mark.parametrize("case", SPOKEN, ids=lambda case: case.id)
def test_nothing_runs_of_a_body_that_ends_before_its_finish_reason(case: Case) -> None:
    for end, chunk in enumerate(case.data["chunks"]):
        if any(choice.get("finish_reason") for choice in chunk.get("choices") or ()):
            return
        # The blank sees to it that something was said; a body in which nothing was makes no turn at all.
        assert ready(turn_of(direct([body_of(case, end), text_chunk(" ")]), case.data["tools"])) == []


def text_chunk(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


# What is wrong only by what follows a whole object, or by the reason at the end, is right where it is cut before that.
SOUND = [
    case
    for case in FRAGMENTED
    if not any(call["reason"] in {"invalid_json", "upstream_error"} for call in case.data["expect"]["incomplete"])
]


@pytest.mark.parametrize("case", SOUND, ids=lambda case: case.id)
def test_what_runs_of_a_body_cut_at_its_length_runs_of_the_whole_as_well(case: Case) -> None:
    expected = {(call["name"], json.dumps(call["arguments"])) for call in case.data["expect"]["calls"]}
    length = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    tail = b"data: " + json.dumps(length).encode() + b"\n\n" + DONE
    for end in range(1, len(case.data["chunks"])):
        if any(choice.get("finish_reason") for choice in case.data["chunks"][end - 1].get("choices") or ()):
            continue  # the model ended here by its own word; what comes behind that may break what was whole
        turn = turn_of(direct([body_of(case, end) + text_chunk(" ") + tail]), case.data["tools"])
        assert set(ready(turn)) <= expected


# Calls in the text ----------------------------------------------------------------------------------------------------


def streamed(pieces: Iterable[str], finish: str | None = "stop") -> list[bytes]:
    reads = [
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]}).encode() + b"\n\n"
        for piece in pieces
    ]
    if finish is not None:
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        reads += [b"data: " + json.dumps(last).encode() + b"\n\n", DONE]
    return reads


def text_of(case: Case) -> str:
    return str(case.data.get("text") or "".join(case.data["text_chunks"]))


def prompted(format: str, pieces: Iterable[str], finish: str | None = "stop") -> Turn:
    return turn_of(PromptedModel(direct(streamed(pieces, finish)), format), list(TOOLS.values()))


@settings(max_examples=examples(150), deadline=None)
@given(case=st.sampled_from(TEXTS), places=PLACES, seed=st.integers(0, 1 << 32), damaged=st.booleans())
def test_no_cut_of_a_text_changes_the_turn(case: Case, places: list[int], seed: int, damaged: bool) -> None:
    text = mutated(text_of(case), random.Random(seed)) if damaged else text_of(case)
    format = case.data["format"]
    whole = content_of(prompted(format, [text or " "]))
    assert content_of(prompted(format, cut(text or " ", places))) == whole


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.id)
def test_a_text_that_comes_letter_by_letter_makes_the_same_turn(case: Case) -> None:
    text = text_of(case)
    assert content_of(prompted(case.data["format"], text)) == content_of(prompted(case.data["format"], [text]))


@settings(max_examples=examples(150), deadline=None)
@given(case=st.sampled_from(TEXTS), end=st.integers(0, 1 << 20))
def test_nothing_runs_of_a_text_whose_stream_broke_off(case: Case, end: int) -> None:
    text = text_of(case)
    turn = prompted(case.data["format"], ["Well. ", text[: end % (len(text) + 1)]], finish=None)
    assert ready(turn) == []


@settings(max_examples=examples(150), deadline=None)
@given(
    format=st.sampled_from(sorted(FORMATS)),
    text=st.lists(st.sampled_from(SCRAPS) | st.text(max_size=6), max_size=25).map("".join),
    places=PLACES,
)
def test_no_text_whatever_makes_a_prompted_answer_fail_or_runs_more_than_was_written(
    format: str, text: str, places: list[int]
) -> None:
    sound = text.encode("utf-8", "replace").decode() or " "
    turn = prompted(format, cut(sound, places))
    turn.text.encode()
    assert len({call.id for call in turn.calls}) == len(turn.calls)
    # Each call that runs names its tool in the text, and one name is one call at most.
    for name in TOOLS:
        assert sum(call.name == name for call in turn.calls if isinstance(call, ReadyCall)) <= sound.count(name)


def test_what_a_prompted_answer_holds_back_is_emitted_later() -> None:
    assert prompted("xml", ["a <func", "tion_calls", " b"]).text == "a <function_calls b"
