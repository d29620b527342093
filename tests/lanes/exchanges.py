"""The same six endings of an answer at many providers of litellm's lane: what was seen of each, and what ran.

Each exchange is one request by `litellm.acompletion` over loopback, whose answer is worded on the provider's wire.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from callgate.calls.states import ReadyCall
from callgate.conversation.errors import ChatError
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines
from callgate.models import litellm_model
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from tests.lanes.matrix import AWS, KEY
from tests.lanes.wires import ANTHROPIC, GOOGLES, WIRES, openai_stream, openai_whole, wire_event
from tests.lanes.wires import Wire as Form
from tests.models.through_litellm import turn_of
from tests.models.wire import Request, Server, Wire, asking, chunk, raw_provider, tool

ENDINGS: Final = ("good", "error", "refusal", "no reason", "cut", "reset")
REASONS: Final = {"good": "tool_calls", "error": "error", "refusal": "content_filter"}
WRITE: Final = tool("write_file", path={"type": "string"})
OPENAI: Final = Form(lambda event: b"", lambda event: b"")
"""OpenAI's own wire, whose bodies are made of the case itself."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A model on litellm's lane, and the wire it answers on."""

    model: str
    more: Mapping[str, Any] = field(default_factory=dict)
    form: Form = OPENAI
    path: str = ""
    """What an address of this provider ends in."""


PROVIDERS: Final[Mapping[str, Provider]] = {
    "openai": Provider("openai/m"),
    "databricks": Provider("databricks/m"),
    "huggingface": Provider("huggingface/org/m", path="/v1"),
    "cloudflare": Provider("cloudflare/@cf/m"),
    "bedrock_mantle": Provider("bedrock_mantle/openai.gpt-oss-120b", path="/v1"),
    "snowflake": Provider("snowflake/mistral-large"),
    "watsonx": Provider("watsonx/ibm/granite", {"token": KEY, "project_id": "p"}),
    "sagemaker_chat": Provider("sagemaker_chat/endpoint", {**AWS, "sagemaker_base_url": ""}),
    "aihubmix": Provider("aihubmix/m"),
    "gmi": Provider("gmi/m"),
    "clarifai": Provider("clarifai/a.b.m"),
    "hosted_vllm": Provider("hosted_vllm/m", path="/v1"),
    "groq": Provider("groq/m"),
    "anthropic": Provider("anthropic/claude-sonnet-4-5", form=ANTHROPIC),
    "azure_ai": Provider("azure_ai/claude-sonnet-4-5", form=ANTHROPIC),
    "gemini": Provider("gemini/gemini-2.5-flash", form=GOOGLES),
    "cohere": Provider("cohere/command-r-plus", form=WIRES["cohere"]),
    "bedrock": Provider("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0", AWS, WIRES["bedrock"]),
}


@dataclass(frozen=True, slots=True)
class Exchange:
    provider: str
    ending: str
    streamed: bool
    reasons: tuple[str, ...]
    """The provider's own words that were seen."""
    findings: tuple[str, ...]
    ran: int
    error: str = ""

    @property
    def is_wrong(self) -> bool:
        """True if something ran that must not, or did not run that should have."""
        if self.ending == "no reason":
            return self.ran > 1  # a body that ended with its end mark is judged by its calls, on every lane
        return self.ran != (1 if self.ending == "good" else 0)

    def line(self) -> str:
        way = "streamed" if self.streamed else "whole"
        what = ",".join(self.reasons) or "-"
        note = self.error or ",".join(self.findings)
        return f"{self.provider:15} {self.ending:10} {way:9} saw {what:22} ran {self.ran}  {note}"


async def exchanges(providers: Iterable[str] = PROVIDERS) -> list[Exchange]:
    client = HttpClient()
    try:
        async with raw_provider(_serve) as server:
            return [
                await _exchanged(server, client, name, ending, streamed=streamed)
                for name in providers
                for ending in ENDINGS
                for streamed in (True, False)
            ]
    finally:
        await client.close()
        await litellm_model.close()


async def _exchanged(server: Server, client: HttpClient, name: str, ending: str, *, streamed: bool) -> Exchange:
    provider = PROVIDERS[name]
    at = f"{server.url}/{name}/{ENDINGS.index(ending)}/{int(streamed)}{provider.path}"
    params = {"model": provider.model, "api_base": at, "api_key": KEY, **provider.more}
    if name in {"bedrock", "vertex_ai", "sagemaker_chat"}:
        del params["api_key"]
    if "sagemaker_base_url" in params:
        params["sagemaker_base_url"] = at
    entry = ModelConfig("m", params, tools=("*",), lane="litellm", deadlines=Deadlines())
    model = Catalogue([entry], client, policy=RetryPolicy(tries=1)).model("m")
    try:
        turn, broke, _ = await turn_of(model, asking(stream=streamed, tools=[WRITE]))
    except ChatError as refused:
        return Exchange(name, ending, streamed, (), (), 0, f"{refused.status} {refused.message}")
    ran = sum(isinstance(call, ReadyCall) for call in turn.calls)
    return Exchange(name, ending, streamed, turn.reasons, tuple(map(str, turn.findings)), ran, str(broke or ""))


async def _serve(request: Request, wire: Wire) -> None:
    _, name, number, streamed, *_ = request.target.split("/")
    ending = ENDINGS[int(number)]
    provider, stream = PROVIDERS[name], streamed.startswith("1")
    case = _case(ending, stream=stream)
    if provider.form is OPENAI:
        body = (openai_stream if stream else openai_whole)(case)
    else:
        body = (provider.form.stream if stream else provider.form.whole)(wire_event(case))
    if ending in ("cut", "reset"):
        body = body[: len(body) * 2 // 3]
    kind = provider.form.kind if stream else "application/json"
    length = () if stream else (f"Content-Length: {len(body) + (ending in ('cut', 'reset'))}",)
    await wire.head(200, kind, *length)
    await wire.send(body)
    if ending == "reset":
        wire.reset()
    else:
        wire.writer.close()


def _case(ending: str, *, stream: bool) -> dict[str, Any]:
    arguments = json.dumps({"path": "/a"})
    reason = REASONS.get(ending, None if ending == "no reason" else "tool_calls")
    function = {"name": "write_file", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    if not stream:
        return {"message": {"role": "assistant", "content": "I write.", "tool_calls": [call]}, "finish_reason": reason}
    chunks = [chunk({"content": "I write."}), chunk({"tool_calls": [{"index": 0, **call}]})]
    return {"chunks": [*chunks, *([chunk(finish=reason)] if reason else [])]}


def report(found: Sequence[Exchange]) -> list[str]:
    wrong = [each for each in found if each.is_wrong]
    good = [each for each in found if each.ending == "good"]
    named = [each for each in found if each.ending in REASONS]
    seen = [each for each in named if each.reasons or each.error]
    total = (
        f"{len({each.provider for each in found})} providers, {len(found)} exchanges: {len(seen)} of {len(named)} end words "
        f"seen, {sum(each.ran for each in good)} of {len(good)} good answers ran, {len(wrong)} wrong"
    )
    return [*(each.line() for each in found), *(f"WRONG {each.line()}" for each in wrong), total]
