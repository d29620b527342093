"""MCP servers, as other programs write them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.guards import ADMITS, FIXED, MAY_BE_PRIVATE, WIDENS_OFF, WIDENS_ON, Guard, WidensTo
from callgate.config.schema.values import BesideFile, Globs, Switch, WebAddress, off_or_on, shape
from callgate.tools.kinds.mcp.oauth.settings import OAuthSection
from callgate.tools.settings import ToolSection


def _plain_text(value: Any) -> Any:
    """Convert unquoted numbers and booleans of other programs' files to text."""
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, int | float):
        return str(value)
    return value


OF_OTHER_CLIENTS = frozenset({"alwaysAllow", "autoApprove", "description", "gallery", "icon", "version"})
"""Fields of other programs in a server's entry that have no effect here."""
ServerKind: TypeAlias = Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"]
Elicitation: TypeAlias = Annotated[Literal["off", "form", "url", "both"], BeforeValidator(off_or_on)]


PinSetting: TypeAlias = Annotated[Literal["hold", "warn", "off"], BeforeValidator(off_or_on)]
PINNED = WidensTo(("hold", None, "warn", "off"))


class _Asks(Guard, frozen=True):
    """What a server may ask a person: more ways, or another one, allow more."""

    def loosened(self, old: Any, new: Any) -> str | None:
        if new in ("off", old) or old == "both":
            return None
        return f"was `{old}`, and would be `{new}`"


ASKS = _Asks()


class _SendsOn(Guard, frozen=True):
    """The headers of requests that are sent on: more of them, or others, tell a server more."""

    def loosened(self, old: Any, new: Any) -> str | None:
        more = [f"`{name}: {source}`" for name, source in new.items() if old.get(name) != source]
        if more:
            return f"would also send on {', '.join(more)}"
        return None


SENDS_ON = _SendsOn()
NEVER_FORWARDED = frozenset(
    "authorization cookie set-cookie host x-api-key api-key proxy-authorization proxy-authenticate www-authenticate"
    " connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect via forwarded"
    " content-length content-type content-encoding accept accept-encoding user-agent last-event-id origin".split()
)
"""Headers that are credentials, that are of one connection alone, or that a request to the server has itself."""


def _may_be_forwarded(name: str) -> str:
    if name.lower() in NEVER_FORWARDED or name.lower().startswith("mcp-"):
        raise PydanticCustomError("forward_headers", "`{name}` is never sent on", {"name": name})
    return name


HeaderName: TypeAlias = Annotated[
    str,
    shape(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$", "should be the name of a header"),
    AfterValidator(_may_be_forwarded),
]
ServerName: TypeAlias = Annotated[
    str,
    shape(
        r"^[^\s*?\[\]][^*?\[\]\x00-\x1f]{0,127}$", "should be a name of at most 128 characters without `*`, `?`, `[`"
    ),
]


class McpServer(ToolSection):
    """An MCP server, as other programs write it, and what Callgate adds to it."""

    type: ServerKind | None = Field(None, validation_alias=AliasChoices("type", "transport"))
    """How it is spoken to; found out where it is not set."""
    command: Annotated[str, Field(min_length=1)] | None = None
    """The program that is the server. It is started with a clean environment and ended with all it started."""
    args: tuple[Annotated[str, BeforeValidator(_plain_text)], ...] = ()
    """The program's arguments."""
    env: Mapping[str, Annotated[SecretStr, BeforeValidator(_plain_text)]] = Field(default_factory=dict)
    """Variables for the program, beside `PATH`, `HOME` and the like."""
    cwd: BesideFile | None = None
    """The folder it runs in, from the config file's folder; Callgate's own where it is not set."""
    url: WebAddress | None = Field(None, repr=False)
    """The address of a server that runs elsewhere."""
    headers: Annotated[Mapping[str, SecretStr], FIXED] = Field(default_factory=dict)
    """Headers to send to it. A caller's credentials never are."""
    oauth: OAuthSection | None = None
    """How to log in to it by OAuth; `oauth: {}` is enough for most servers."""
    forward_headers: Annotated[Mapping[HeaderName, HeaderName], SENDS_ON] = Field(default_factory=dict)
    """Headers of requests to send on to it, as `X-User: X-Forwarded-User`; with `oauth.per: key` or `user` alone."""
    allow_private: Annotated[Switch | None, MAY_BE_PRIVATE] = None
    """Allow its host to have a private address. Not set: if the address is plainly your own, as localhost is."""
    disabled: Annotated[Switch, WIDENS_OFF] = False
    """Leave it out."""
    elicitation: Annotated[Elicitation, ASKS] = "off"
    """What it may ask a person while a tool runs: by a `form`, by a page to open (`url`), or `both`. It waits as an approval does."""
    resources: Annotated[Switch, WIDENS_ON] = True
    """Offer a tool `read_resource` that reads the server's resources, where it has any and `allowed_tools` has that name."""
    pins: Annotated[PinSetting | None, PINNED] = None
    """What becomes of a tool that is new, or says something else of itself than before: `hold` it until somebody accepts it, `warn`, or
    `off`. Not set: a tool that may write is held where it is remembered what it was (`data_dir`, a ledger); all else is warned of."""
    allowed_tools: Annotated[Globs | None, ADMITS] = None
    """The tools of it that are taken, by its own names for them or globs; all where it is not set."""
    prefix: (
        Annotated[str, shape(r"^[A-Za-z0-9_-]{0,40}$", "should be at most 40 letters, digits, `_` or `-`")] | None
    ) = None
    """What goes before its tools' names, with `_` between; its name where it is not set, nothing where it is empty."""

    @model_validator(mode="before")
    @classmethod
    def _without_foreign_fields(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if name not in OF_OTHER_CLIENTS}

    @model_validator(mode="after")
    def _one_way_to_it(self) -> "McpServer":
        if (self.command is None) == (self.url is None):
            raise PydanticCustomError("one_of", "needs either `command` or `url`")
        if self.type is not None and (self.type == "stdio") != (self.command is not None):
            needed = "command" if self.type == "stdio" else "url"
            raise PydanticCustomError(
                "one_of", "`type: {type}` goes with `{needed}`", {"type": self.type, "needed": needed}
            )
        if self.command is not None and self.headers:
            raise PydanticCustomError("one_of", "`headers` go with `url`")
        if self.command is not None and self.oauth is not None:
            raise PydanticCustomError("one_of", "`oauth` goes with `url`")
        if self.oauth is not None and self.oauth.grant != "none" and "authorization" in map(str.lower, self.headers):
            raise PydanticCustomError("one_of", "`oauth` sets `Authorization` itself: it cannot stand in `headers` too")
        if self.forward_headers and (self.oauth is None or self.oauth.per == "server"):
            raise PydanticCustomError(
                "one_of", "`forward_headers` say who asks: they go with `oauth: {example}`", {"example": "{per: user}"}
            )
        fixed = {name.lower() for name in self.headers}
        twice = sorted(name for name in self.forward_headers if name.lower() in fixed)
        if twice:
            raise PydanticCustomError("one_of", "`{name}` is in `headers` already", {"name": twice[0]})
        if self.oauth is not None and self.oauth.per != "server" and self.cache_shared:
            raise PydanticCustomError(
                "one_of", "`cache_shared` goes with `oauth.per: server`: results are of each identity"
            )
        if self.url is not None and (self.args or self.env or self.cwd):
            raise PydanticCustomError("one_of", "`args`, `env` and `cwd` go with `command`")
        return self
