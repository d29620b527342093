"""The catalogue of models: names, deployments, wildcards, fallbacks.

The lane of a deployment is chosen when it is first asked, because choosing may load litellm.
"""

import difflib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import structlog
from msgspec.structs import replace

from callgate.conversation.errors import ChatError
from callgate.conversation.events import Responder
from callgate.conversation.finish_words import further_words
from callgate.conversation.ports import Model, ModelAnswer, ModelRequest, Passthrough
from callgate.http.client import HttpClient
from callgate.models import litellm_model, resolve
from callgate.models.deployments import Cooldown, Deployment, DeploymentPool
from callgate.models.direct.model import Endpoint
from callgate.models.direct.passthrough import PassthroughModel
from callgate.models.media import Fetch
from callgate.models.named_reasons import NamedReasonsModel
from callgate.models.providers import DEMO
from callgate.models.resolve import ModelConfig
from callgate.models.retry import RetryBudget, RetryContext, RetryingModel, RetryPolicy
from callgate.parsers.pool import ParserPool

if TYPE_CHECKING:
    from callgate.models.demo_model import DemoModel
    from callgate.models.litellm_lane.model import LiteLLMModel
    from callgate.models.translated.model import TranslatedModel
    from callgate.models.translated.responses_lane import ResponsesModel

log = structlog.get_logger("callgate.models")

Wrap: TypeAlias = Callable[[Model, ModelConfig], Model]
"""Wraps each deployment: in the prompt wrapper, for models that cannot call functions."""
OnCooldown: TypeAlias = Callable[[Responder, float], None]
"""Called when a cooldown of a deployment begins, with its length; with 0 when the deployment answers again."""

FILLED_IN = 256
"""How many names that matched a wildcard are cached. Clients choose these names, so that there has to be a bound."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=\-]{0,199}")


class Catalogue:
    def __init__(
        self,
        entries: Sequence[ModelConfig],
        client: HttpClient,
        *,
        wrap: Wrap | None = None,
        policy: RetryPolicy | None = None,
        circumstances: RetryContext | None = None,
        fetch: Fetch | None = None,
        parsers: ParserPool | None = None,
        cooldown_seconds: float = 0.0,
        on_cooldown: OnCooldown = lambda responder, seconds: None,
        earlier_cooldowns: Sequence[tuple[ModelConfig, Cooldown]] = (),
    ) -> None:
        """`cooldown_seconds`: the length of the first cooldown of a deployment that keeps failing; 0 is none. `earlier_cooldowns`: the
        cooldowns of the previous catalogue. `parsers` words long requests where litellm does."""
        for entry in entries:
            resolve.check(entry)
        self._client = client
        self._fetch = fetch
        self._parsers = parsers
        self._wrap = wrap or (lambda model, entry: model)
        self._policy = policy or RetryPolicy()
        self._circumstances = circumstances or RetryContext(RetryBudget())
        by_name: dict[str, list[ModelConfig]] = {}
        for entry in entries:
            by_name.setdefault(entry.model_name, []).append(entry)
        self._exact = {name: tuple(deployments) for name, deployments in by_name.items() if "*" not in name}
        self._patterns = [_Pattern(name, deployments) for name, deployments in by_name.items() if "*" in name]
        # Patterns with more literal characters are tried first, as litellm does.
        self._patterns.sort(key=lambda pattern: -len(pattern.text.replace("*", "")))
        self._cooldown_seconds = cooldown_seconds
        self._on_cooldown = on_cooldown
        self._known = [
            (entry, cooldown) for entry, cooldown in earlier_cooldowns if cooldown.seconds == cooldown_seconds
        ]
        self._ready: OrderedDict[str, _Ready] = OrderedDict()
        self._pools: OrderedDict[str, DeploymentPool] = OrderedDict()
        """One for each name, whether it is requested or a fallback, so that each deployment has one cooldown."""
        for entry in entries:
            for fallback in entry.fallbacks:
                if not self._match(fallback):
                    raise resolve.LaneError(f"{entry.model_name}: there is no model named {fallback!r} to fall back to")

    def names(self) -> list[str]:
        """Return the names that a client can request, without wildcards."""
        return list(self._exact)

    def patterns(self) -> list[str]:
        return [pattern.text for pattern in self._patterns]

    def entry(self, name: str) -> ModelConfig:
        """Return the entry whose tools and settings count for a name: the first of its deployments."""
        return self._get(name).entries[0]

    def entries(self, name: str) -> Sequence[ModelConfig]:
        """All deployments of a name."""
        return self._get(name).entries

    def model(self, name: str) -> RetryingModel:
        """Return the model that answers to a name."""
        return self._get(name).model

    def deployments(self, name: str) -> Sequence[Deployment]:
        """Return all deployments of a name with their cooldowns, in the order of their entries."""
        return self.model(name).pools[0].deployments

    def known_deployments(self) -> Sequence[Deployment]:
        """Return the deployments of all names that were requested so far."""
        return [deployment for pool in self._pools.values() for deployment in pool.deployments]

    def handed_on(self) -> list[tuple[ModelConfig, Cooldown]]:
        """Return the cooldowns of deployments that failed when they were asked last, for the next catalogue."""
        return [
            (entry, deployment.cooldown)
            for name, pool in self._pools.items()
            for entry, deployment in zip(self._match(name), pool.deployments, strict=True)
            if deployment.cooldown.failures
        ]

    async def close(self) -> None:
        await self._client.close()

    def _get(self, name: str) -> "_Ready":
        if (ready := self._ready.get(name)) is not None:
            self._ready.move_to_end(name)
            return ready
        entries = self._match(name)
        if not entries:
            message = f"The model `{name[:100]}` does not exist"
            close = difflib.get_close_matches(name[:200], self.names(), n=1, cutoff=0.5)
            message += f"; did you mean `{close[0]}`?" if close else "."
            raise ChatError(404, message, param="model", code="model_not_found")
        # A fallback's own fallbacks are not followed, so that one entry shows all models that a request may use.
        others = dict.fromkeys(fallback for entry in entries for fallback in entry.fallbacks if fallback != name)
        pools = [self._pool(name, entries), *(self._pool(other, self._match(other)) for other in others)]
        ready = self._ready[name] = _Ready(entries, RetryingModel(name, pools, self._circumstances, self._policy))
        if len(self._ready) > FILLED_IN + len(self._exact):
            self._ready.popitem(last=False)
        return ready

    def _match(self, name: str) -> Sequence[ModelConfig]:
        if entries := self._exact.get(name):
            return entries
        if not _SAFE_NAME.fullmatch(name) or ".." in name or "://" in name:
            return ()
        for pattern in self._patterns:
            if filled := pattern.fill(name):
                return filled
        return ()

    def _pool(self, name: str, entries: Sequence[ModelConfig]) -> DeploymentPool:
        if (pool := self._pools.get(name)) is not None:
            self._pools.move_to_end(name)
            return pool
        pool = self._pools[name] = DeploymentPool(name, [self._deployment(entry) for entry in entries])
        if len(self._pools) > FILLED_IN + len(self._exact):
            self._pools.popitem(last=False)
        return pool

    def _deployment(self, entry: ModelConfig) -> Deployment:
        inner: DemoModel | PassthroughModel | ResponsesModel | _Undecided
        if is_demo(entry):
            from callgate.models import demo_model

            inner = demo_model.DemoModel(entry.model_name)
        elif resolve.lane_of(entry) == "responses" and (endpoint := resolve.responses_endpoint(entry)) is not None:
            from callgate.models.translated import responses_lane

            inner = responses_lane.ResponsesModel(
                entry.model_name, endpoint, self._client, entry.deadlines, answer_bytes=entry.answer_bytes
            )
        elif entry.lane in {"auto", "direct"} and (endpoint := resolve.known_endpoint(entry)) is not None:
            inner = _direct(entry, endpoint, self._client)
        else:
            inner = _Undecided(entry, self._client, self._fetch, self._parsers)
        name = str(entry.litellm_params["model"])
        responder = Responder(entry.model_name, name, inner.host, entry.configured_name, entry.pattern or name)
        # Find out whether an entry of the previous config is the same deployment.
        cooldown = next(
            (
                cooldown
                for earlier, cooldown in self._known
                if (earlier.model_name == entry.model_name and earlier.litellm_params == entry.litellm_params)
            ),
            None,
        ) or Cooldown(
            self._cooldown_seconds, lambda seconds: self._on_cooldown(responder, seconds), self._circumstances.clock
        )
        named = further_words(entry.finish_reasons)
        model = NamedReasonsModel(inner, named) if named else inner
        undecided = inner if isinstance(inner, _Undecided) else None
        return Deployment(self._wrap(model, entry), responder, undecided, cooldown)


def is_demo(entry: ModelConfig) -> bool:
    """True if an entry is of the built-in demo model: `demo` or `demo/…`."""
    return str(entry.litellm_params["model"]).partition("/")[0] == DEMO


class _Ready(msgspec.Struct, frozen=True):
    entries: Sequence[ModelConfig]
    model: RetryingModel


class _Undecided:
    """A deployment for which litellm has to be loaded; the first request does."""

    def __init__(self, entry: ModelConfig, client: HttpClient, fetch: Fetch | None, parsers: ParserPool | None) -> None:
        self.name = entry.model_name
        self._parsers = parsers
        self._fetch = fetch
        self._entry = entry
        self._client = client
        self.host = resolve.host_of(entry.litellm_params)
        """Empty where only litellm knows it, until the first request."""
        self._settled: PassthroughModel | TranslatedModel | LiteLLMModel | None = None

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        if self._settled is None:
            return self._send(request)
        return self._settled.send(request)

    @asynccontextmanager
    async def _send(self, request: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        entry = self._entry
        if entry.lane in {"auto", "direct"} and (endpoint := await litellm_model.vouched_endpoint(entry)) is not None:
            self._settled = _direct(entry, endpoint, self._client)
        else:
            settings = resolve.litellm_settings(entry)
            if entry.lane != "direct" and resolve.lane_of(entry) != "litellm":
                from callgate.models.translated.model import TranslatedModel

                self._settled = TranslatedModel(
                    entry.model_name,
                    settings,
                    self._client,
                    entry.deadlines,
                    answer_bytes=entry.answer_bytes,
                    fetch=self._fetch,
                    parsers=self._parsers,
                )
            else:
                from callgate.models.litellm_lane.model import LiteLLMModel

                self._settled = LiteLLMModel(
                    entry.model_name,
                    settings,
                    entry.deadlines,
                    self._fetch,
                    answer_bytes=entry.answer_bytes,
                    trusts_litellm=entry.trust_litellm == "on",
                    parsers=self._parsers,
                )
        self.host = self._settled.host
        async with self._settled.send(request) as answer:
            yield answer


def _direct(entry: ModelConfig, endpoint: Endpoint, client: HttpClient) -> PassthroughModel:
    return PassthroughModel(entry.model_name, endpoint, client, entry.deadlines, answer_bytes=entry.answer_bytes)


class _Pattern:
    """A wildcard name: what its stars match in a request replaces the stars in the entry's model."""

    def __init__(self, text: str, entries: Sequence[ModelConfig]) -> None:
        self.text = text
        self._entries = entries
        self._regex = re.compile("(.*)".join(re.escape(part) for part in text.split("*")))

    def fill(self, name: str) -> Sequence[ModelConfig]:
        match = self._regex.fullmatch(name)
        if match is None or not all(match.groups()):
            return ()
        filled = (
            replace(
                entry,
                model_name=name,
                pattern=entry.model_name,
                litellm_params=_filled(entry.litellm_params, match.groups()),
            )
            for entry in self._entries
        )
        return tuple(map(_without_unseen_tools, filled))


def _without_unseen_tools(entry: ModelConfig) -> ModelConfig:
    """Return the entry without tools where the request chose a provider of which the end of an answer is not seen."""
    if entry.tools and (why := resolve.why_end_is_unseen(entry)) is not None:
        log.warning("tools_withheld", model=entry.model_name, why=why)
        return replace(entry, tools=())
    return entry


def _filled(params: Mapping[str, Any], stars: Sequence[str]) -> Mapping[str, Any]:
    pieces = str(params["model"]).split("*")
    fillings = [*stars, *[stars[-1]] * len(pieces)]
    model = "".join(piece + filling for piece, filling in zip(pieces, [*fillings[: len(pieces) - 1], ""], strict=True))
    return {**params, "model": model}
