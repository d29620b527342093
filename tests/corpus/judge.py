"""Runs cases of the corpus through the product's own path and compares what came with what was to come.

The rules are in README.md next to this file. Nothing here knows a rule: chunks are read by `callgate.models.direct.chunks`, text
by `callgate.text_calls.reader`, and what they say is folded by `callgate.conversation.turn` against compiled schemas.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.states import BrokenCall, ReadyCall
from callgate.conversation.events import Finished, PromptedCalling, StreamEnd
from callgate.conversation.finish import classify
from callgate.conversation.finish_words import FinishClass
from callgate.conversation.turn import Turn, TurnBuilder
from callgate.models.direct.chunks import ChunkReader, read_completion
from callgate.tools.schema import compile_schema

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Case:
    path: Path
    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.data.get("id", self.path.stem))


def cases(*roots: Path) -> Iterator[Case]:
    """Every case below these directories, or of the corpus itself."""
    for root in roots or (HERE,):
        for path in [root] if root.is_file() else sorted(root.rglob("*.json")):
            yield Case(path, json.loads(path.read_text()))


def turn_of_case(case: Case) -> Turn:
    """What the product makes of a case."""
    data = case.data
    if "chunks" in data:
        return _run_stream(data)
    if "message" in data:
        return _run_message(data)
    return _run_text(data)


def verdict(case: Case) -> list[str]:
    """What differs from what was expected; nothing if the case passes."""
    turn = turn_of_case(case)
    expected = case.data["expect"]
    is_text = "format" in case.data
    shape = _collapsed if is_text else str
    differences = [
        *_differing("calls", expected["calls"], _calls(turn, expected["calls"])),
        *_differing("incomplete", expected["incomplete"], _incomplete(turn)),
        *_differing("content", shape(expected["content"]), shape(turn.text)),
        *_differing("warnings", sorted(expected["warnings"]), sorted(set(turn.findings))),
    ]
    if "reasoning" in expected:
        differences += _differing("reasoning", shape(expected["reasoning"]), shape(turn.reasoning))
    if "echo" in expected and not is_within(expected["echo"], turn.assistant_message()):
        differences.append(f"echo: {_json(expected['echo'])} is not in {_json(turn.assistant_message())}")
    ids = [call.id for call in turn.calls]
    if len(set(ids)) < len(ids) or not all(ids):
        differences.append(f"ids: not unique and filled: {ids}")
    return differences


def offer_of(tools: list[dict[str, Any]]) -> Offer:
    return _compiled(json.dumps(tools))


@cache
def _compiled(tools: str) -> Offer:
    functions = [tool["function"] for tool in json.loads(tools)]
    return {
        function["name"]: OfferedTool(function["name"], schema, compile_schema(schema))
        for function in functions
        for schema in [function.get("parameters") or {}]
    }


def _builder(data: Mapping[str, Any]) -> TurnBuilder:
    count = itertools.count()
    return TurnBuilder(offer=offer_of(data["tools"]), ids=lambda: f"made_{next(count)}")


def _run_stream(data: Mapping[str, Any]) -> Turn:
    building = _builder(data)
    reader = ChunkReader()
    for chunk in data["chunks"]:
        building.feed(reader.read(chunk))
    building.feed(reader.finish())
    return building.finish(StreamEnd(data.get("end", "done")))


def _run_message(data: Mapping[str, Any]) -> Turn:
    building = _builder(data)
    building.feed(read_completion({"message": data["message"], "finish_reason": data.get("finish_reason")}))
    return building.finish()


def _run_text(data: Mapping[str, Any]) -> Turn:
    from callgate.text_calls.echoes import RequestEchoes  # here, so that native cases can be judged without them
    from callgate.text_calls.reader import reader_for

    building = _builder(data)
    building.feed([PromptedCalling(data["format"])])
    functions = [tool["function"] for tool in data["tools"]]
    reader = reader_for(
        data["format"],
        {function["name"]: (function.get("parameters") or {}).get("properties", ()) for function in functions},
        thinking="unknown",
        echoes=RequestEchoes(data.get("messages", ())),
    )
    reason = data.get("finish_reason", "stop") or ""
    for text in [data["text"]] if "text" in data else data["text_chunks"]:
        building.feed(reader.feed(text))
    building.feed(reader.finish(in_order=classify(reason) <= FinishClass.TOOL_CALLS))
    building.feed([Finished(reason)])
    return building.finish()


def _calls(turn: Turn, expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls that would run; with their ids only where the case says which."""
    ready = [call for call in turn.calls if isinstance(call, ReadyCall)]
    shown = []
    for call, wanted in itertools.zip_longest(ready, expected):
        if call is not None:
            id_ = {"id": call.id} if wanted and "id" in wanted else {}
            shown.append({"name": call.name, "arguments": call.arguments, **id_})
    return shown


def _incomplete(turn: Turn) -> list[dict[str, Any]]:
    broken = [call for call in turn.calls if isinstance(call, BrokenCall)]
    return [{"name": call.name, "reason": call.flaw.value} for call in broken]


def _collapsed(text: str) -> str:
    return " ".join(text.split())


def _differing(what: str, expected: Any, got: Any) -> list[str]:
    """Compared as JSON, where 1 and true and 1.0 are three different things."""
    return [] if _json(expected) == _json(got) else [f"{what}: expected {_json(expected)}, got {_json(got)}"]


def is_within(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and is_within(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        same_length = isinstance(whole, list) and len(part) == len(whole)
        return same_length and all(itertools.starmap(is_within, zip(part, whole, strict=True)))
    return _json(part) == _json(whole)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
