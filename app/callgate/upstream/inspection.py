"""Inspects one deployment for `doctor` and the API: its lane, its host, and whether it would answer.

For the operator's commands. An inspection requests the list of models, or one token where there is no list.
"""

import asyncio
import difflib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelRequest
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines, TransportError
from callgate.http.proxies import USUAL_PORTS
from callgate.upstream import errors, litellm_model, resolve
from callgate.upstream.catalogue import Catalogue, is_demo
from callgate.upstream.direct_model import Endpoint, host_in
from callgate.upstream.resolve import ModelConfig
from callgate.upstream.retry import RetryPolicy

Verdict: TypeAlias = Literal["ok", "warn", "fail"]
SECONDS = 15.0
"""The deadline of an inspection."""
NO_LIST = frozenset({404, 405, 501})
"""Statuses of servers without a list of models. They are asked for one token instead."""
LIST_BYTES = 8_000_000
_KEY = "put a key that this provider takes where `litellm_params.api_key` has it from"
_REACH = (
    "look whether this machine reaches it: a proxy is named in HTTPS_PROXY or HTTP_PROXY, hosts beside it in NO_PROXY, an own CA "
    "in SSL_CERT_FILE"
)
_ENTRY = "correct the model's entry in what the provider complains of"
_STATUS = re.compile(r"upstream status (\d{3})")
_TODO: Mapping[int, str] = {
    401: _KEY,
    402: "the provider wants to be paid first",
    403: _KEY,
    404: "name a model that the provider has in `litellm_params.model`",
    429: "wait, or raise the limit of this key at the provider",
}
_PATIENCE = Deadlines(connect=SECONDS, first_byte=SECONDS, idle=SECONDS, total=SECONDS)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The lane and the address of a deployment."""

    lane: str
    host: str | None
    """None where only litellm knows it."""
    endpoint: Endpoint | None = None
    why: str | None = None
    """The reason for litellm's lane, where the entry does not set a lane."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of an inspection."""

    verdict: Verdict
    detail: str
    seconds: float = 0.0
    todo: str | None = None
    """What the operator can do."""


async def whereabouts(entry: ModelConfig) -> Whereabouts:
    """Return the lane and the address of an entry. May load litellm, which takes two seconds the first time."""
    if is_demo(entry):
        return Whereabouts("demo", None)
    if resolve.lane_of(entry) == "responses" and (endpoint := resolve.responses_endpoint(entry)) is not None:
        return Whereabouts("responses", host_in(endpoint.url), endpoint)
    endpoint = None
    if entry.lane in {"auto", "direct"}:
        endpoint = resolve.known_endpoint(entry) or await litellm_model.vouched_endpoint(entry)
    if endpoint is not None:
        return Whereabouts("direct", host_in(endpoint.url), endpoint)
    host = resolve.host_of(entry.litellm_params) or None
    lane = resolve.lane_of(entry)
    return Whereabouts(lane, host, why=resolve.why_not_translated(entry) if lane == "litellm" != entry.lane else None)


async def look(entry: ModelConfig, client: HttpClient) -> Found:
    """Check that the provider is there, takes the key and has the model."""
    if is_demo(entry):
        return Found("ok", "built in")
    began = time.perf_counter()
    try:
        async with asyncio.timeout(SECONDS):
            place = await whereabouts(entry)
            found = await (_listed(place.endpoint, client) if place.endpoint else _asked(entry, client))
            if found is None:
                found = await _asked(entry, client)
    except TimeoutError:
        found = Found("fail", f"no answer within {SECONDS:g} s", todo=_REACH)
    return replace(found, seconds=time.perf_counter() - began)


async def proxy_to(entry: ModelConfig, client: HttpClient) -> str | None:
    """Return the proxy from the environment through which a deployment is asked, if any."""
    place = await whereabouts(entry)
    if place.endpoint is None or client.proxies is None:
        return None
    parts = urlsplit(place.endpoint.url)
    secure = parts.scheme == "https"
    try:
        proxy = client.proxies.proxy_for(parts.hostname or "", parts.port or USUAL_PORTS[parts.scheme], secure=secure)
    except TransportError as error:  # a variable with an invalid proxy; a request fails with the same error
        return str(error)
    return None if proxy is None else str(proxy)


async def _listed(endpoint: Endpoint, client: HttpClient) -> Found | None:
    """Get the provider's list of models; None where it has none."""
    address = endpoint.url.removesuffix("/chat/completions") + "/models"
    try:
        async with client.get(address, endpoint.headers, _PATIENCE) as response:
            status = response.status
            body = await response.read(LIST_BYTES) if status == 200 else b""
    except TransportError as error:
        local = (urlsplit(address).hostname or "") in {"localhost", "127.0.0.1", "::1"}
        todo = "start the server, or correct `litellm_params.api_base`" if local else _REACH
        return Found("fail", errors.redact(f"cannot be reached: {error}", endpoint.secrets), todo=todo)
    if status in NO_LIST:
        return None
    if status in {401, 403}:
        return Found("fail", f"the provider refuses the key ({status})", todo=_KEY)
    if status != 200:
        return Found("fail", f"the provider's list of models answers {status}")
    names = _names_in(body)
    if not names:
        return None
    if "*" in endpoint.model or endpoint.model in names:
        return Found("ok", "reached; the key is taken" if endpoint.headers.get("Authorization") else "reached")
    near = difflib.get_close_matches(endpoint.model, sorted(names), n=3)
    todo = f"name one that it has: {', '.join(near or sorted(names)[:5])}"
    return Found("warn", f"reached, but the provider does not list {endpoint.model!r}", todo=todo)


def _names_in(body: bytes) -> set[str]:
    try:
        listed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return set()
    data = listed.get("data") if isinstance(listed, Mapping) else None
    return {str(it["id"]) for it in data if isinstance(it, Mapping) and "id" in it} if isinstance(data, list) else set()


async def _asked(entry: ModelConfig, client: HttpClient) -> Found:
    """Request one token of an answer."""
    if "*" in entry.model_name or "*" in str(entry.litellm_params["model"]):
        return Found("warn", "not asked: a wildcard stands for no one model")
    alone = replace(entry, fallbacks=(), deadlines=_PATIENCE)
    model = Catalogue([alone], client, policy=RetryPolicy(tries=1)).model(entry.model_name)
    params: dict[str, Any] = {"max_tokens": 1}
    try:
        async with model.ask(ModelRequest(({"role": "user", "content": "hi"},), params=params, stream=False)) as answer:
            async for _ in answer:
                break
    except ChatError as error:
        said = _STATUS.match(error.detail or "")  # a client is told 502 of a key that is ours
        status = int(said[1]) if said else error.status
        todo = _TODO.get(status, _ENTRY if status < 500 else _REACH)
        return Found("fail", error.message + (f" ({error.detail})" if error.detail else ""), todo=todo)
    return Found("ok", "answered")
