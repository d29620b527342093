"""The hook `webhook`: asks a guardrail server in the words of litellm's generic guardrail API.

https://docs.litellm.ai/docs/adding_provider/generic_guardrail_api
"""

from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx2
import msgspec

from callgate.calls.outcome import Failed
from callgate.guardrails.verdicts import PASS, Block, GuardEvent, Mask, Verdict
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Request, Web, ask
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import json_reader

PATH: Final = "/beta/litellm_basic_guardrail_api"
ANSWER: Final = Door(name="the answer of a guardrail server", bytes=64 * 1024 * 1024)
LEAST_ANSWER: Final = 65_536
"""Bytes that any answer may have; one with texts may have six times theirs."""
NO_REASON: Final = "the guardrail server gives no reason"
_ESCAPED: Final = 6
"""Bytes of one character in JSON at most."""

_encode = msgspec.json.Encoder().encode


class _ServerAnswer(msgspec.Struct):
    """What a server answers. Other fields of it are not looked at."""

    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    blocked_reason: str | None = None
    texts: list[str] | None = None


_read = json_reader(_ServerAnswer)


class NoVerdict(Exception):
    """Raised where the server gives none."""


class Webhook:
    """A guardrail server."""

    def __init__(
        self,
        web: Web,
        url: str,
        rules: AddressRules,
        api_key: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self._web = web
        self._url = httpx2.URL(address_of(url))
        self._rules = rules
        self._params = dict(params or {})
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if api_key is not None:
            self._headers["x-api-key"] = api_key

    async def check(self, event: GuardEvent) -> Verdict:
        body = _encode(payload_of(event, self._params))
        most = LEAST_ANSWER + _ESCAPED * sum(map(len, event.texts))
        answer = await ask(self._web, self._rules, Request("POST", self._url, self._headers, body), most)
        if isinstance(answer, Failed):
            raise NoVerdict(answer.text)
        if answer.cut_bytes:
            raise NoVerdict("its answer is too long")
        verdict = _read(Untrusted(answer.text.encode(), ANSWER).open())
        if verdict.action == "BLOCKED":
            return Block(verdict.blocked_reason or NO_REASON)
        if verdict.texts:  # as litellm, also beside `NONE`
            return Mask(verdict.texts)
        if verdict.action == "GUARDRAIL_INTERVENED":
            raise NoVerdict("it intervened, and gave no texts")
        return PASS


def address_of(url: str) -> str:
    """Return where to ask: litellm adds the path to what its operator gives."""
    if urlsplit(url).path.rstrip("/").endswith(PATH):
        return url
    return f"{url.rstrip('/')}{PATH}"


def payload_of(event: GuardEvent, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question. What litellm has no field for is among the params."""
    about = {"callgate_point": event.point, "callgate_part": event.part, "callgate_tool": event.tool or None}
    payload: dict[str, Any] = {
        "input_type": "response" if event.point in ("answer", "arguments") else "request",
        "litellm_call_id": event.call_id or event.run_id or None,
        "litellm_trace_id": event.run_id or None,
        "structured_messages": None,
        "images": list(event.images) or None,
        "tools": None,
        "texts": list(event.texts),
        "request_data": {"user_api_key_alias": event.key or None},
        "request_headers": None,
        "litellm_version": None,
        "additional_provider_specific_params": {**params, **{name: value for name, value in about.items() if value}},
        "tool_calls": None,
        "model": event.model or None,
    }
    if event.point == "arguments":
        function = {"name": event.tool, "arguments": event.arguments}
        payload["tool_calls"] = [{"id": event.call_id, "type": "function", "function": function}]
    return payload
