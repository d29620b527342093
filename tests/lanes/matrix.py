"""Plays cases through lanes over loopback and compares what would run with what would run on the direct lane."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import StreamEnd
from callgate.conversation.ports import NO_FIELDS, JudgedFields, Message, Model, ModelRequest
from callgate.conversation.turn import TurnBuilder
from callgate.http.client import HttpClient
from callgate.models import litellm_model
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from callgate.policy.litellm_settings import without_settings
from tests.corpus.judge import Case, cases, offer_of
from tests.lanes.wires import WIRES, Inexpressible, openai_stream, openai_whole, wire_event
from tests.models.wire import QUICK, Request, Server, Wire, closing, raw_provider

KEY = "key-of-a-scripted-provider"
AWS = {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "secret-example", "aws_region_name": "us-east-1"}
VERTEX = {
    "vertex_project": "p", "vertex_location": "us-central1", "extra_headers": {"Authorization": f"Bearer {KEY}"},
}  # fmt: skip
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "openai": ("openai/m", {}),
    "responses": ("openai/responses/gpt-5-pro", {}),
    "groq": ("groq/llama-3.3-70b-versatile", {}),
    "deepseek": ("deepseek/deepseek-chat", {}),
    "openrouter": ("openrouter/some/model", {}),
    "mistral": ("mistral/mistral-large-latest", {}),
    "together_ai": ("together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo", {}),
    "fireworks_ai": ("fireworks_ai/accounts/fireworks/models/llama-v3p1-405b-instruct", {}),
    "xai": ("xai/grok-3", {}),
    "databricks": ("databricks/m", {}),
    "gmi": ("gmi/m", {}),
    "azure": ("azure/my-deployment", {"api_version": "2024-10-21"}),
    "anthropic": ("anthropic/claude-sonnet-4-5", {}),
    "messages": ("anthropic/claude-sonnet-4-5", {}),
    "claude_on_vertex": ("vertex_ai/claude-sonnet-4-5", VERTEX),
    "claude_on_azure": ("azure_ai/claude-sonnet-4-5", {}),
    "gemini": ("gemini/gemini-2.5-flash", {}),
    "vertex_ai": ("vertex_ai/gemini-2.5-flash", VERTEX),
    "bedrock": ("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0", AWS),
    "cohere": ("cohere/command-r-plus", {}),
    "tapped": ("openai/m", {}),
    "tapped_snowflake": ("snowflake/m", {}),
    "tapped_anthropic": ("anthropic/claude-sonnet-4-5", {}),
    "tapped_gemini": ("gemini/gemini-2.5-flash", {}),
    "tapped_bedrock": ("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0", AWS),
    "tapped_cohere": ("cohere/command-r-plus", {}),
}
"""A model of each provider, and what its entry says beside the address and the key; `messages` is Claude, asked by a client of
the Messages API, and `responses` a model of OpenAI's that answers on no other API. The `tapped` ones are asked by litellm."""
TAPPED = "tapped"
REFERENCE = "openai"


@dataclass(slots=True)
class Figures:
    """What became of all cases at one provider."""

    provider: str
    lanes: set[str] = field(default_factory=set)
    played: int = 0
    without_form: int = 0
    ran: int = 0
    reference_ran: int = 0
    more: list[str] = field(default_factory=list)
    """Executions that the direct lane would not have made, by case."""

    def line(self) -> str:
        lanes = ",".join(sorted(self.lanes))
        counts = f"{self.played:4} played, {self.without_form:3} without a form there"
        ran = f"{self.ran:4} calls ran of {self.reference_ran:4}, {len(self.more)} more than on the direct lane"
        return f"{self.provider:16} {lanes:10} {counts}, {ran}"


def native_cases() -> list[Case]:
    return [case for case in cases() if "chunks" in case.data or "message" in case.data]


async def play(found: Sequence[Case], providers: Iterable[str] = MODELS) -> list[Figures]:
    client = HttpClient()
    try:
        async with raw_provider(closing(_Answers(found).serve)) as server:
            reference = [await _executed(server, client, REFERENCE, at, case, set()) for at, case in enumerate(found)]
            return [await _played(server, client, provider, found, reference) for provider in providers]
    finally:
        await client.close()
        await litellm_model.close()


async def _played(
    server: Server, client: HttpClient, provider: str, found: Sequence[Case], reference: Sequence[Counter[str]]
) -> Figures:
    figures = Figures(provider)
    for at, (case, expected) in enumerate(zip(found, reference, strict=True)):
        try:
            if provider in WIRES:
                wire_event(case.data)
        except Inexpressible:
            figures.without_form += 1
            continue
        ran = await _executed(server, client, provider, at, case, figures.lanes)
        figures.played += 1
        figures.ran += ran.total()
        figures.reference_ran += expected.total()
        figures.more += [f"{case.id}: {call}" for call in (ran - expected).elements()]
    return figures


async def _executed(
    server: Server, client: HttpClient, provider: str, at: int, case: Case, lanes: set[str]
) -> Counter[str]:
    """The calls that would run, as text."""
    model, more = MODELS[provider]
    params = {"model": model, "api_base": f"{server.url}/{provider}/{at}", "api_key": KEY, **more}
    if provider.removeprefix("tapped_") in {"bedrock", "vertex_ai", "claude_on_vertex"}:
        del params["api_key"]
    lane: Literal["litellm", "auto"] = "litellm" if provider.startswith(TAPPED) else "auto"
    entry = ModelConfig("m", params, tools=("*",), lane=lane, deadlines=QUICK)
    answering = Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m")
    data, count = case.data, itertools.count()
    building = TurnBuilder(offer=offer_of(data["tools"]), ids=lambda: f"made_{next(count)}")
    tools = [msgspec.Raw(json.dumps(tool).encode()) for tool in data["tools"]]
    original = _Original() if provider == "messages" else None
    asked = ModelRequest([{"role": "user", "content": "hi"}], tools, None, NO_FIELDS, "chunks" in data, original)
    end = await _read(answering, asked, building, lanes)
    if end is None:
        return Counter()
    ready = [call for call in building.finish(end).calls if isinstance(call, ReadyCall)]
    return Counter(f"{call.name} {json.dumps(call.arguments, sort_keys=True)}" for call in ready)


async def _read(model: Model, request: ModelRequest, building: TurnBuilder, lanes: set[str]) -> StreamEnd | None:
    """How the answer ended; None where it failed before it had begun, so that there is no turn."""
    try:
        async with asyncio.timeout(120), model.send(request) as answer:
            try:
                async for batch in answer:
                    building.feed(batch)
            except BrokenOff as error:
                return StreamEnd.ERROR if error.transport_error else StreamEnd.EOF
            finally:
                lanes.add(answer.lane)
        return StreamEnd.DONE
    except ChatError as error:
        if error.status in {400, 404, 422}:  # the request was refused, so that nothing was played
            raise
        return None


class _Original:
    """The question as such a client asks it."""

    api: Literal["messages"] = "messages"
    fields: JudgedFields = without_settings({"max_tokens": msgspec.Raw(b"99")})
    is_chat: bool = False
    betas: Sequence[str] = ()
    foreign: Sequence[tuple[str, str]] = ()
    unplaced: Sequence[str] = ()
    functions: Mapping[str, Mapping[str, Any]] = {}
    native: Mapping[str, Mapping[str, Any]] = {}

    def blocks_of(self, message: Message) -> tuple[str, Sequence[Any]] | None:
        return None


class _Answers:
    """Serves each case below `/PROVIDER/NUMBER/`, on that provider's wire."""

    def __init__(self, found: Sequence[Case]) -> None:
        self._cases = found

    async def serve(self, request: Request, wire: Wire) -> None:
        _, provider, number, *_ = request.target.split("/")
        data = self._cases[int(number.partition(":")[0])].data
        stream = "chunks" in data
        form = WIRES.get(provider)
        if form is None:
            body, kind = (openai_stream if stream else openai_whole)(data), "text/event-stream"
        else:
            body, kind = (form.stream if stream else form.whole)(wire_event(data)), form.kind
        await wire.head(200, kind if stream else "application/json")
        await wire.send(body)
        if data.get("end") == "error":
            wire.reset()


def report(all_figures: Sequence[Figures]) -> list[str]:
    played = sum(figures.played for figures in all_figures)
    more = [f"{figures.provider} {call}" for figures in all_figures for call in figures.more]
    total = (
        f"{len(all_figures)} providers, {played} answers played, {len(more)} executions more than on the direct lane"
    )
    return [*(figures.line() for figures in all_figures), *more, total]
