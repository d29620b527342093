"""Every finish reason of every provider, and words that nobody has heard of, on every lane, streamed and whole: what runs is
exactly what the word says."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from callgate.calls.states import Flaw, ReadyCall
from callgate.conversation.events import Finished, ProviderError
from callgate.conversation.finish import meaning_of
from callgate.conversation.finish_words import FinishClass
from callgate.conversation.ports import NO_FIELDS, ModelRequest
from callgate.conversation.turn import Turn, TurnBuilder
from callgate.http.client import HttpClient
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from callgate.models.translated.responses_answer import end_of
from tests.conversation.finish_table import ALL_WORDS, DOCUMENTED, Expected, expected_on
from tests.corpus.judge import offer_of
from tests.lanes.matrix import MODELS, _Original, _read
from tests.lanes.wires import WIRES, openai_stream, openai_whole, wire_event
from tests.models.through_litellm import MARKS
from tests.models.wire import QUICK, Request, Wire, closing, raw_provider

pytestmark = MARKS

TOOL = {
    "type": "function",
    "function": {
        "name": "write_file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
PATHS = ("/a", "/b")
NO_TEXTS: tuple[Any, ...] = (0, 1, 1.5, True, False, {"type": "max_tokens"}, {"reason": "stop"}, ["length"])
"""Values of other types than a reason has."""
IN_ORDER = (Expected.STOP, Expected.TOOL_CALLS)


def case_with(word: Any, *, stream: bool) -> dict[str, Any]:
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": "write_file", "arguments": json.dumps({"path": path})}}
        for at, path in enumerate(PATHS)
    ]  # fmt: skip
    if not stream:
        return {"message": {"role": "assistant", "content": "I write.", "tool_calls": calls}, "finish_reason": word}
    deltas = [{"content": "I write."}, *({"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls)), {}]
    return {
        "chunks": [
            {
                "id": "c1",
                "object": "chat.completion.chunk",
                "model": "m",
                "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else word}],
            }
            for delta in deltas
        ]
    }


async def serve(request: Request, wire: Wire) -> None:
    _, provider, kind, number, *_ = request.target.split("/")
    word = [*ALL_WORDS, *NO_TEXTS][int(number.partition(":")[0])]
    form = WIRES.get(provider)
    if form is None:
        case = case_with(word, stream=kind == "stream")
        body, content_type = (openai_stream if kind == "stream" else openai_whole)(case), "text/event-stream"
    else:
        found = wire_event(case_with("stop", stream=kind == "stream"))
        found.reason = word
        found.is_verbatim = True
        body, content_type = (form.stream if kind == "stream" else form.whole)(found), form.kind
    await wire.head(200, content_type if kind == "stream" else "application/json")
    await wire.send(body)


async def turn_with(client: HttpClient, url: str, provider: str, *, stream: bool, **more: Any) -> Turn:
    model, params = MODELS[provider]
    settings: dict[str, Any] = {"model": model, "api_base": url, "api_key": "k", **params}
    if provider in {"bedrock", "vertex_ai"}:
        del settings["api_key"]
    entry = ModelConfig("m", settings, tools=("*",), deadlines=QUICK, **more)
    numbers = itertools.count()
    building = TurnBuilder(offer=offer_of([TOOL]), ids=lambda: f"made_{next(numbers)}")
    original = _Original() if provider == "messages" else None
    tools = [msgspec.Raw(json.dumps(TOOL).encode())]
    ask = ModelRequest([{"role": "user", "content": "hi"}], tools, None, NO_FIELDS, stream, original)
    asked = Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m")
    end = await _read(asked, ask, building, set())
    assert end is not None
    return building.finish(end)


def ran(turn: Turn) -> list[Any]:
    return [call.arguments["path"] for call in turn.calls if isinstance(call, ReadyCall)]


def expected_runs(provider: str, expected: Expected, *, stream: bool) -> list[str]:
    if expected in IN_ORDER:
        return list(PATHS)
    if expected is not Expected.LENGTH:
        return []
    shows_the_cut = stream and provider not in {"gemini", "vertex_ai"}  # which send objects, as whole answers do
    return list(PATHS if shows_the_cut else PATHS[:1])


FLAWS: Mapping[Expected, Flaw] = {
    Expected.FILTER: Flaw.CONTENT_FILTER,
    Expected.FAILED: Flaw.UPSTREAM_ERROR,
    Expected.UNKNOWN: Flaw.UPSTREAM_ERROR,
    Expected.UNKNOWN_LENGTH: Flaw.UPSTREAM_ERROR,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("provider", [*DOCUMENTED, "openai", "openrouter", "mistral"])
async def test_beside_each_finish_reason_runs_exactly_what_it_says(provider: str, stream: bool) -> None:
    wrong = []
    client = HttpClient()
    kind = "stream" if stream else "whole"
    async with raw_provider(closing(serve)) as server:
        for number, word in enumerate(ALL_WORDS):
            expected = expected_on(provider, word)
            turn = await turn_with(client, f"{server.url}/{provider}/{kind}/{number}", provider, stream=stream)
            is_unknown = not expected.meaning.is_known
            came = (ran(turn), turn.failure, turn.unknown_reasons, turn.broke_off, turn.text)
            due = (
                expected_runs(provider, expected, stream=stream),
                FLAWS.get(expected),
                (word,) if is_unknown else (),
                expected is Expected.FAILED,
                "I write.",
            )
            if came != due:
                wrong.append((word, expected.name, came))
    await client.close()
    assert wrong == []


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini", "bedrock", "cohere", "openrouter"])
async def test_an_entry_names_what_a_word_means_on_every_lane(provider: str, stream: bool) -> None:
    number = ALL_WORDS.index("OTHER")
    client = HttpClient()
    async with raw_provider(closing(serve)) as server:
        url = f"{server.url}/{provider}/{'stream' if stream else 'whole'}/{number}"
        for kind, expected in (
            (FinishClass.STOP, Expected.STOP),
            (FinishClass.TOOL_CALLS, Expected.TOOL_CALLS),
            (FinishClass.LENGTH, Expected.LENGTH),
            (FinishClass.CONTENT_FILTER, Expected.FILTER),
        ):
            turn = await turn_with(client, url, provider, stream=stream, finish_reasons={kind: ("other",)})
            assert ran(turn) == expected_runs(provider, expected, stream=stream)
            assert (turn.reasons, turn.winner, turn.unknown_reasons) == (("OTHER",), kind, ())
        turn = await turn_with(client, url, provider, stream=stream, finish_reasons={FinishClass.STOP: ("another",)})
        assert ran(turn) == []
    await client.close()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("provider", [*DOCUMENTED, "openai", "openrouter", "mistral"])
async def test_beside_a_reason_that_is_no_text_nothing_runs(provider: str, stream: bool) -> None:
    """null and "" are no reason; anything else is one that nobody knows."""
    client = HttpClient()
    async with raw_provider(closing(serve)) as server:
        for number, value in enumerate(NO_TEXTS, start=len(ALL_WORDS)):
            url = f"{server.url}/{provider}/{'stream' if stream else 'whole'}/{number}"
            turn = await turn_with(client, url, provider, stream=stream)
            assert (ran(turn), turn.failure, turn.text) == ([], Flaw.UPSTREAM_ERROR, "I write."), value
            is_unreadable = turn.broke_off and isinstance(value, dict | list)  # by litellm's readers
            assert turn.unknown_reasons or is_unreadable, value
    await client.close()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("completed", "runs"),
        ("incomplete", "runs"),  # for its length, where it does not say why
        *((word, "failed") for word in ("failed", "cancelled", "in_progress", "queued")),
        *((word, "unknown") for word in ("halted", "stop", "completed_partially", 0, False, {"type": "completed"})),
    ],
)
async def test_a_status_of_a_response_that_nobody_knows_is_no_failure(status: Any, expected: str) -> None:
    [event] = end_of({"status": status}, {}, has_calls=True)
    if expected == "failed":
        assert isinstance(event, ProviderError)
    else:
        assert isinstance(event, Finished)
        assert meaning_of(event).is_known == (expected == "runs")
