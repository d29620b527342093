"""The clients' keys."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from callgate.config.schema.faces import ResponsesOfOne
from callgate.config.schema.guards import ADMITS, CEILING, OFFERED, WIDENS_ON, Guard, WidensTo
from callgate.config.schema.tool_search import ToolSearch
from callgate.config.schema.values import (
    Count,
    Globs,
    KeyHash,
    KeyName,
    Moment,
    Money,
    OfferSetting,
    Seconds,
    Section,
    Switch,
    ToolEvents,
    UsageSetting,
    moment_of,
    off_or_on,
    shape,
)


class EndOfKey(Guard, frozen=True):
    """The moment when something ends; None is never."""

    def loosened(self, old: str | None, new: str | None) -> str | None:
        if old is None or (new is not None and moment_of(new) <= moment_of(old)):
            return None
        if new is None:
            return "would never end"
        return "would end later"


ENDS = EndOfKey()


if TYPE_CHECKING:
    from callgate.callers.client_mcp import ClientMcp

_CLIENT_MCP_MODES = ("off", "on")


def _named_host(text: str) -> str:
    from callgate.callers.client_mcp import HostPattern, NoAddress  # where there is such a setting

    try:
        HostPattern.of(text)
    except NoAddress as problem:
        raise PydanticCustomError("host", "is no host: {why}", {"why": str(problem)}) from None
    return text


HostGlob: TypeAlias = Annotated[
    str,
    shape(
        r"^(https?://)?(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._*?-]{1,253})(:[0-9]{1,5})?$",
        "should be a host or a glob like `*.example.com`, with `:port` where it is another, and `http://` where it is not encrypted",
    ),
    AfterValidator(_named_host),
]


class ClientMcpSection(Section):
    """Which MCP servers requests may name by their addresses, and what holds for these."""

    mode: Annotated[Literal["off", "on"], BeforeValidator(off_or_on), WidensTo(("off", "on"))] = "on"
    """`off` for none. The word alone stands for the whole."""
    hosts: Annotated[tuple[HostGlob, ...] | None, ADMITS] = None
    """The hosts that may be named. Not set: any that is public, by `https` at port 443."""
    max_servers: Annotated[Count, CEILING] = 4
    """How many servers one request may name."""
    tools: Annotated[Count, CEILING] = 64
    """How many tools they may have, all servers of a request together."""
    result_bytes: Count | None = None
    """How much of a result a model gets; `limits.tool_result_bytes` where it is not set."""
    timeout: Seconds = 30.0
    """Seconds that a call of such a tool may take."""
    trust_annotations: Annotated[Switch, WIDENS_ON] = False
    """Believe what such a server says of the safety of its tools. Without, each of them counts as one that writes."""

    def value(self) -> "ClientMcp | None":
        """Return what requests may name; None for no server."""
        if self.mode == "off":
            return None
        from callgate.callers.client_mcp import ClientMcp, HostPattern  # where there is such a setting

        return ClientMcp(
            hosts=None if self.hosts is None else tuple(map(HostPattern.of, self.hosts)),
            max_servers=self.max_servers,
            tools=self.tools,
            result_bytes=self.result_bytes,
            timeout=self.timeout,
            trust_annotations=self.trust_annotations,
        )


class _OrTheClientMcpMode:
    """Allows the mode alone instead of the whole."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._section, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": [*_CLIENT_MCP_MODES, True, False]}, handler(schema)]}

    def _section(self, value: Any) -> Any:
        mode = off_or_on(value)
        if isinstance(mode, str) and mode in _CLIENT_MCP_MODES:
            return {"mode": mode}
        if not isinstance(value, (Mapping, ClientMcpSection)):
            raise PydanticCustomError("client_mcp", "should be `off`, `on`, or a mapping with `hosts`")
        return value


ClientMcpSetting: TypeAlias = Annotated[ClientMcpSection, _OrTheClientMcpMode()]
NO_SERVERS = ClientMcpSection.by_default(mode="off")


class RateLimits(Section):
    """How much may be used, of requests, tokens and money."""

    requests_per_minute: Annotated[Count | None, CEILING] = None
    """How many requests it may make in any minute; no limit where it is not set."""
    tokens_per_minute: Annotated[Count | None, CEILING] = None
    """How many tokens, of questions and answers, it may use in any minute."""
    parallel: Annotated[Count | None, CEILING] = None
    """How many of its requests may be under way at once: in each process, or in all together with `store.redis_url`."""
    budget_per_day: Annotated[Money | None, CEILING] = None
    """US dollars it may spend in a day (UTC), by litellm's prices or those in `model_info`."""
    budget_per_month: Annotated[Money | None, CEILING] = None
    """US dollars it may spend in a month (UTC)."""


class Rights(RateLimits):
    """What a key, or a group of the issuer, may."""

    models: Annotated[Globs, ADMITS] = ("*",)
    """The models it may ask, as names or globs."""
    tools: Annotated[Globs, ADMITS] = ("*",)
    """The tools of the config it may use, as names or globs, and those that providers run (`provider:web_search*`); `[]` for none."""
    offer: Annotated[OfferSetting | None, OFFERED] = None
    """Which of its requests are offered tools of the config: `any`, or only those `with_client_tools`; as the model's entry says
    where it is not set."""
    tool_search: ToolSearch | None = None
    """Whether its requests search for tools instead of having all in the prompt, as at a model's entry, which counts where this is
    not set; the tools that are pinned there stay so."""
    client_mcp: ClientMcpSetting = NO_SERVERS
    """Whether its requests may name MCP servers by their addresses: `off`, `on`, or which of them."""
    approve: Annotated[Switch, WIDENS_ON] = False
    """It may decide about calls that wait for approval, its own and those of others."""
    admin: Annotated[Switch, WIDENS_ON] = False
    """It may make the server read the config again."""
    see: Annotated[Literal["none", "own", "all"], BeforeValidator(off_or_on), WidensTo(("none", "own", "all"))] = "none"
    """Which recorded runs it may see: none, those made with it, or all. With `admin: on` it sees all."""
    events: ToolEvents | None = None
    """How its clients are shown that tools run, unless their request sets it: `openwebui` for Open WebUI's status lines."""
    usage: UsageSetting | None = None
    """Which token counts answers report, unless the request sets it: `auto`, `sum`, or `last_turn` for agents that take them
    for the size of their context, such as Copilot CLI and Cline."""
    responses: ResponsesOfOne = ResponsesOfOne.by_default()
    """How responses are served to it."""


class Key(Rights):
    """One client's key."""

    name: KeyName
    """Who it is; appears in logs."""
    hash: KeyHash
    """`sha256:` and the hex digest of the key. The key itself is never written down."""
    expires: Annotated[Moment | None, ENDS] = None
    """When it ends: from this date (UTC) or moment on it is refused. Never, where it is not set."""
    old_hash: KeyHash | None = None
    """The hash of the key that this one replaces, which is taken as well while clients change over."""
    old_expires: Annotated[Moment | None, ENDS] = None
    """When that key ends."""

    @model_validator(mode="after")
    def _an_old_key_is_another(self) -> "Key":
        if self.old_expires is not None and self.old_hash is None:
            raise PydanticCustomError("old_key", "`old_expires` goes with `old_hash`")
        if self.old_hash == self.hash:
            raise PydanticCustomError("old_key", "`old_hash` is the same as `hash`")
        return self
