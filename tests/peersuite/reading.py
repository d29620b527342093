"""What Callgate makes of a case: of a text as the model it came from would be read, of native deltas as they came."""

import itertools
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.states import BrokenCall, ReadyCall
from callgate.conversation.attempts import Attempts
from callgate.conversation.events import ModelEvent
from callgate.conversation.ports import ModelRequest, Passthrough, hand_nothing
from callgate.conversation.turn import TurnBuilder
from callgate.models.direct.chunks import ChunkReader, read_completion
from callgate.text_calls import families, prompted
from callgate.text_calls.prompted import PromptedModel
from callgate.text_calls.thinking import ThinkingMemory
from callgate.tools.schema import SchemaError, compile_schema

Case: TypeAlias = Mapping[str, Any]

ARGUMENT_BYTES = 1_000_000
RANDOM_CUTS = 3
PIECE_SIZES = (1, 2, 3, 5, 8, 13, 40)


@dataclass(frozen=True, slots=True)
class Read:
    """What a reader made of a case."""

    calls: Sequence[Mapping[str, Any]]
    broken: Sequence[Mapping[str, Any]]
    content: str
    reasoning: str


@dataclass(frozen=True, slots=True)
class Family:
    """The model that a case is from, and the format that its texts are read in."""

    model: str
    format: str


def family_of(case: Case, formats: Mapping[str, Mapping[str, Any]]) -> Family:
    """Where `auto` has no line for the case's model, the list of formats says what it is read in."""
    entry = formats[case["format"]]
    known = families.known_format(entry["model"])
    return Family(entry["model"], str(known or entry.get("callgate") or families.format_for(entry["model"])))


def pieces_of(case: Case) -> Iterator[list[str]]:
    """The text in single characters, then cut at random."""
    text, chance = case["text"], random.Random(case["id"])
    yield list(text)
    for _ in range(RANDOM_CUTS):
        pieces, at = [], 0
        while at < len(text):
            size = chance.choice(PIECE_SIZES)
            pieces.append(text[at : at + size])
            at += size
        yield pieces


async def read_whole(case: Case, reading: Family) -> Read:
    message = {"role": "assistant", "content": case["text"]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return await _read_text(case, reading, [read_completion({"id": "c", "choices": [choice]})], stream=False)


async def read_streamed(case: Case, reading: Family, pieces: Iterable[str]) -> Read:
    batches = _batches([{"content": piece} for piece in pieces], "stop")
    return await _read_text(case, reading, batches, stream=True)


def read_native(case: Case) -> Read:
    builder = _builder(case)
    for batch in _batches(case["deltas"], "tool_calls"):
        builder.feed(batch)
    return _read(builder)


async def _read_text(case: Case, reading: Family, batches: Iterable[Sequence[ModelEvent]], *, stream: bool) -> Read:
    ask = ModelRequest(
        messages=({"role": "user", "content": "hello"},),
        tools=tuple(msgspec.Raw(msgspec.json.encode(tool)) for tool in case["tools"]),
        stream=stream,
    )
    model = PromptedModel(
        _ScriptedModel(batches),
        reading.format,
        argument_bytes=ARGUMENT_BYTES,
        # A case that names its template is of that template's model.
        thinking=ThinkingMemory(case.get("template") or reading.model),
    )
    builder = _builder(case)
    # Past the check of the request: some projects' cases have tools with names that OpenAI refuses.
    asked = prompted._prompted_request(ask, model._style, constrain=False)
    async with model._send_prompted(asked) as answer:
        async for batch in answer:
            builder.feed(batch)
    return _read(builder)


def _read(builder: TurnBuilder) -> Read:
    turn = builder.finish()
    return Read(
        [{"name": call.name, "arguments": call.arguments} for call in turn.calls if isinstance(call, ReadyCall)],
        [{"name": call.name, "flaw": call.flaw.value} for call in turn.calls if isinstance(call, BrokenCall)],
        turn.text,
        turn.reasoning,
    )


def _builder(case: Case) -> TurnBuilder:
    return TurnBuilder(offer=_offer(case["tools"]), ids=map("made_{}".format, itertools.count()).__next__)


def _offer(tools: Iterable[Mapping[str, Any]]) -> Offer:
    """The tools of a case. A schema that does not compile is not enforced, as for a client's own tools."""
    offer = {}
    for tool in tools:
        name, schema = tool["function"]["name"], tool["function"].get("parameters") or {}
        try:
            offer[name] = OfferedTool(name, schema, compile_schema(schema))
        except SchemaError:
            offer[name] = OfferedTool(name, schema)
    return offer


def _batches(deltas: Iterable[Mapping[str, Any]], reason: str) -> Iterator[Sequence[ModelEvent]]:
    reader = ChunkReader()
    for delta in itertools.chain([{"role": "assistant", "content": ""}], deltas):
        yield reader.read(_chunk(delta))
    yield reader.read(_chunk({}, reason))
    yield reader.finish()


def _chunk(delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


class _ScriptedModel:
    """A model that answers any question with these batches."""

    name = "scripted"

    def __init__(self, batches: Iterable[Sequence[ModelEvent]]) -> None:
        self._batches = batches

    @asynccontextmanager
    async def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AsyncIterator["_ScriptedAnswer"]:
        yield _ScriptedAnswer(self._batches)


class _ScriptedAnswer:
    reason_is_raw = True
    hand_to = hand_nothing
    lane = "direct"

    def __init__(self, batches: Iterable[Sequence[ModelEvent]]) -> None:
        self._batches = batches

    async def __aiter__(self) -> AsyncIterator[Sequence[ModelEvent]]:
        for batch in self._batches:
            yield batch
