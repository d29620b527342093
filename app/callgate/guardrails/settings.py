"""An entry of `guardrails`: where a hook looks, whose requests, and what it does."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.guards import ADMITS, WIDENS_ON, Guard
from callgate.config.schema.values import NO_BOOLEAN, FunctionPath, Globs, Seconds, Section, Switch, WebAddress, shape

Point: TypeAlias = Literal["request", "answer", "arguments", "result", "description"]
MOST_HELD: Final = 256
"""Characters of a streamed answer that a hook may hold back."""
HookName: TypeAlias = Annotated[str, shape(r"^[A-Za-z0-9_-]{1,64}$", "should be 1 to 64 letters, digits, `_` or `-`")]
PatternName: TypeAlias = Literal[
    "cards", "ibans", "us_ssns", "emails", "phones", "cloud_keys", "tokens", "jwts", "private_keys"
]


class HookSection(Section):
    """What all hooks have."""

    name: HookName
    """What it is called in runs, metrics and logs."""
    at: Annotated[tuple[Point, ...], Field(min_length=1)]
    """Where it looks: at what a client sent (`request`), what the model says to the client (`answer`), a whole call before it runs
    (`arguments`), what a tool returned before the model reads it (`result`), and what a tool says of itself (`description`)."""
    on_error: Literal["closed", "open"] = "closed"
    """What becomes of what it could not judge: `closed` blocks it, `open` lets it pass."""
    timeout_seconds: Seconds = 5.0
    """How long it may take for one verdict."""
    hold_characters: Annotated[int, Field(ge=1, le=MOST_HELD), NO_BOOLEAN] = MOST_HELD
    """The most characters of a streamed answer that it holds back."""
    models: Globs | None = None
    """The models, as names or globs, whose requests it looks at; all where it is not set. Where no model is asked it looks."""
    keys: Globs | None = None
    """The keys, likewise; `anonymous` is who comes without one."""
    tools: Globs | None = None
    """The tools, likewise, at whose arguments, results and descriptions it looks."""

    @model_validator(mode="after")
    def _knows_whose(self) -> "HookSection":
        if "description" in self.at and (self.models is not None or self.keys is not None):
            raise PydanticCustomError(
                "description", "a description is everybody's: `models` and `keys` do not go with `at: [description]`"
            )
        return self


class PatternsHook(HookSection):
    """Masks or blocks texts of known shapes."""

    kind: Literal["patterns"]
    """`patterns`"""
    find: tuple[PatternName, ...] = ()
    """The shapes that it knows: those with a checksum count only where it is right."""
    own: Mapping[HookName, Annotated[str, Field(min_length=1, max_length=500)]] = Field(default_factory=dict)
    """Regular expressions of your own, by a name for what they match: without lookaround and references, and read in linear time."""
    then: Literal["mask", "block"] = "mask"
    """Whether what matches is replaced by the name of its shape, or all of it is blocked."""

    @model_validator(mode="after")
    def _looks_for_something(self) -> "PatternsHook":
        if not self.find and not self.own:
            raise PydanticCustomError("patterns", "should look for something, by `find` or `own`")
        return self


class SizesHook(HookSection):
    """Blocks what is too large."""

    kind: Literal["sizes"]
    """`sizes`"""
    max_bytes: Annotated[int, Field(ge=1), NO_BOOLEAN] | None = None
    """The most bytes that its texts have together, in UTF-8."""
    max_tokens: Annotated[int, Field(ge=1), NO_BOOLEAN] | None = None
    """The same in tokens, estimated at four bytes each."""

    @model_validator(mode="after")
    def _has_a_limit(self) -> "SizesHook":
        if self.max_bytes is None and self.max_tokens is None:
            raise PydanticCustomError("sizes", "should have `max_bytes` or `max_tokens`")
        return self


class PythonHook(HookSection):
    """Asks a function of yours."""

    kind: Literal["python"]
    """`python`"""
    function: FunctionPath
    """`package.module:function`, which gets an event and returns `Pass`, `Mask` or `Block`; or an object with such a `check`."""


class WebhookHook(HookSection):
    """Asks a guardrail server, in the words of litellm's generic guardrail API."""

    kind: Literal["webhook"]
    """`webhook`"""
    url: Annotated[WebAddress, Field(repr=False)]
    """The server. Where it has no path `/beta/litellm_basic_guardrail_api` is added, as litellm does."""
    api_key: SecretStr | None = None
    """Sent as `x-api-key`."""
    params: Mapping[str, Any] = Field(default_factory=dict)
    """Sent as `additional_provider_specific_params`."""
    allow_private: Annotated[Switch, WIDENS_ON] = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Annotated[Globs, ADMITS] = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""


HookEntry: TypeAlias = Annotated[PatternsHook | SizesHook | PythonHook | WebhookHook, Field(discriminator="kind")]

_SCOPES: Final = ("models", "keys", "tools")
_CEILINGS: Final = ("max_bytes", "max_tokens")


class Hooks(Guard, frozen=True):
    """All hooks: none may go, look at less, or do less."""

    def loosened(self, old: Sequence[Any], new: Sequence[Any]) -> str | None:
        now = {facts["name"]: facts for facts in map(_facts, new)}
        for was in map(_facts, old):
            name = was["name"]
            if name not in now:
                return f"`{name}` would be gone"
            if (what := _weaker(was, now[name])) is not None:
                return f"`{name}` {what}"
        return None

    def written(self, value: Sequence[Any]) -> Any:
        return [_facts(hook) for hook in value]


HOOKS: Final = Hooks()


def _facts(hook: Any) -> Mapping[str, Any]:
    """Return what of a hook has to stay as strict as it is, as JSON without secrets; what was written is that already."""
    if isinstance(hook, Mapping):
        return hook
    facts = hook.model_dump(
        mode="json", exclude={"api_key", "timeout_seconds", "hold_characters", "allow_private", "allow_hosts"}
    )
    return {name: value for name, value in facts.items() if value is not None}


def _weaker(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return in words how a hook guards less than it did, None where it does not."""
    for name in ("kind", "function", "url", "params"):
        if was.get(name) != now.get(name):
            return f"would be another: its `{name}` differs"
    if (what := _sees_less(was, now)) is not None:
        return what
    for name in _CEILINGS:
        if name in was and (name not in now or now[name] > was[name]):
            return f"would let more pass: `{name}`"
    if was.get("on_error") == "closed" and now.get("on_error") == "open":
        return "would let pass what it cannot judge"
    if was.get("then") == "block" and now.get("then") == "mask":
        return "would only mask what it blocked"
    return None


def _sees_less(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return in words how a hook looks at less, or for less, than it did."""
    for name, word in (("at", "at"), ("find", "for")):
        if gone := sorted(set(was.get(name, ())) - set(now.get(name, ()))):
            return f"would not look {word} `{'`, `'.join(gone)}` any more"
    own = was.get("own", {})
    if gone := sorted(name for name, pattern in own.items() if now.get("own", {}).get(name) != pattern):
        return f"would not look for its own `{'`, `'.join(gone)}` any more"
    for name in _SCOPES:
        if name not in now or "*" in now[name]:
            continue
        if name not in was or set(was[name]) - set(now[name]):
            return f"would look at fewer {name}"
    return None
