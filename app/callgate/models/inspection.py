"""Inspects one deployment for `doctor` and the API: its lane, its host, and whether it would answer.

For the operator's commands. An inspection requests the list of models, or one token where there is no list.
"""

import asyncio
import difflib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelRequest
from callgate.http.client import HttpClient
from callgate.http.interface import Compressed, Deadlines, TransportError
from callgate.http.proxies import USUAL_PORTS
from callgate.models import errors, litellm_model, resolve
from callgate.models.catalogue import Catalogue, is_demo
from callgate.models.direct.model import Endpoint, host_in, refusal
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryPolicy
from callgate.policy.litellm_settings import without_settings
from callgate.untrusted.doors import Door, TooMuch, Untrusted
from callgate.untrusted.readers import read_value

Verdict: TypeAlias = Literal["ok", "warn", "fail"]
SECONDS = 15.0
"""The deadline of an inspection."""
NO_LIST = frozenset({400, 404, 405, 422, 501})
"""Statuses of servers without a list of models. They are asked for one token instead."""
LIST_BYTES = 8_000_000
MODEL_LIST = Door(name="list of a provider's models", bytes=LIST_BYTES)
_KEY = "put a key that this provider takes where `litellm_params.api_key` has it from"
_REACH = (
    "look whether this machine reaches it: a proxy is named in HTTPS_PROXY or HTTP_PROXY, hosts beside it in NO_PROXY, an own CA "
    "in SSL_CERT_FILE"
)
_CERTIFICATE = "name the authority that signed its certificate in `upstream.ca_file` (PEM), or the certificate itself if it signed itself"
_PLAIN_HTTP = "look whether it speaks TLS at all: with plain HTTP, `litellm_params.api_base` begins with `http://`"
_START = "start the server, or correct `litellm_params.api_base`"
_ENTRY = "correct the model's entry in what the provider complains of"
_PLAIN = (
    "have what stands between here and the provider leave answers as they are where `Accept-Encoding: identity` is sent"
)
_LATER = "try again later, or ask those who run the provider: the failure is theirs"
_STATUS = re.compile(r"upstream status (\d{3})")
_NAME = "name a model that the provider has in `litellm_params.model`"
_TODO: Mapping[int, str] = {
    402: "the provider wants to be paid first",
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


class Found(msgspec.Struct, frozen=True):
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
    place: Whereabouts | None = None
    try:
        async with asyncio.timeout(SECONDS):
            place = await whereabouts(entry)
            finding = None
            if place.endpoint:
                finding = await _ask_for_list(place.endpoint, client)
            if finding is None:
                finding = await _ask_for_token(entry, client)
    except TimeoutError:
        url = entry.litellm_params.get("api_base")
        if place is not None and place.endpoint:
            url = place.endpoint.url
        todo = _REACH
        if _is_here(url) and str(url).startswith("https://"):
            todo = _PLAIN_HTTP
        finding = Found("fail", f"no answer within {SECONDS:g} s", todo=todo)
    return replace(finding, seconds=time.perf_counter() - began)


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
    if proxy is None:
        return None
    return str(proxy)


async def _ask_for_list(endpoint: Endpoint, client: HttpClient) -> Found | None:
    """Get the provider's list of models; None where it has none."""
    address = endpoint.url.removesuffix("/chat/completions") + "/models"
    try:
        async with client.get(address, endpoint.headers, _PATIENCE) as response:
            status = response.status
            if status in NO_LIST:
                return None
            if status != 200:
                return _found_failure(await refusal(response, endpoint.secrets), endpoint.url)
            body = await response.read(LIST_BYTES)
    except TransportError as error:
        return _found_failure(errors.from_transport(error), endpoint.url)
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
        listed = read_value(Untrusted(body, MODEL_LIST).open())
    except (TooMuch, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return set()
    if isinstance(listed, Mapping) and isinstance(data := listed.get("data"), list):
        return {str(model["id"]) for model in data if isinstance(model, Mapping) and "id" in model}
    return set()


async def _ask_for_token(entry: ModelConfig, client: HttpClient) -> Found:
    """Request one token of an answer."""
    if "*" in entry.model_name or "*" in str(entry.litellm_params["model"]):
        return Found("warn", "not asked: a wildcard stands for no one model")
    alone = replace(entry, fallbacks=(), deadlines=_PATIENCE)
    model = Catalogue([alone], client, policy=RetryPolicy(tries=1)).model(entry.model_name)
    params: dict[str, Any] = {"max_tokens": 1}
    try:
        async with model.send(
            ModelRequest(({"role": "user", "content": "hi"},), params=without_settings(params), stream=False)
        ) as answer:
            async for _ in answer:
                break
    except ChatError as error:
        place = await whereabouts(entry)
        return _found_failure(error, place.endpoint.url if place.endpoint else entry.litellm_params.get("api_base"))
    return Found("ok", "answered")


def _found_failure(error: ChatError, url: str | None) -> Found:
    """`url` is where the model is asked; None if the entry does not say it."""
    detail = (error.detail or "").strip(" :")
    status_found = _STATUS.match(detail)  # for a refused key clients are sent a 502
    status = int(status_found[1]) if status_found else 0
    if status in {401, 403}:
        if status_found:
            why = detail[status_found.end() :].strip(" :")
        else:
            why = ""
        return Found("fail", f"the provider refuses the key ({status})" + (why and f": {why}"), todo=_KEY)
    if error.code in {"upstream_unreachable", "upstream_timeout"} and not status:
        return Found("fail", f"cannot be reached: {detail}", todo=_todo_to_reach(detail, url))
    return Found("fail", error.message + (f" ({detail})" if detail else ""), todo=_todo(error, status, url))


def _todo_to_reach(detail: str, url: str | None) -> str:
    if "CERTIFICATE" in detail.upper():
        return _CERTIFICATE
    if "WRONG_VERSION_NUMBER" in detail or "record layer failure" in detail.lower():
        return _PLAIN_HTTP
    if not _is_here(url):
        return _REACH
    if str(url).startswith("https://") and "refused" not in detail.lower():
        return _PLAIN_HTTP
    return _START


def _is_here(url: str | None) -> bool:
    return url is not None and urlsplit(url).hostname in {"localhost", "127.0.0.1", "::1"}


def _todo(error: ChatError, status: int, url: str | None) -> str:
    if error.code == "model_not_found":
        return _NAME
    if error.code == "insufficient_quota":
        return _TODO[402]
    if status in _TODO:
        return _TODO[status]
    if (error.detail or "").startswith(Compressed.__name__):
        return _PLAIN
    if status >= 500:
        return _LATER
    if (error.status < 500 or status >= 400) and status not in {404, 405}:
        return _ENTRY
    if url is None:
        return _REACH
    parts = urlsplit(url)
    return (
        f"correct `litellm_params.api_base`: nothing of the kind answers at {parts.scheme}://{host_in(url)}{parts.path}"
    )
