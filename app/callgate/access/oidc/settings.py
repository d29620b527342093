"""The company's issuer, and what its groups may."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from callgate.access.settings import RateLimits, Rights
from callgate.config.schema.guards import CEILING, ONLY_THESE, SAME, Guard
from callgate.config.schema.values import NO_BOOLEAN, READ_LATE, Section, WebAddress, off_or_on, shape

EVERYBODY: Final = "*"
"""The group of whoever has a token of the issuer."""
MOST_SKEW: Final = 300.0

Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]


def _an_issuer(address: str) -> str:
    parts = urlsplit(address)
    if parts.query or parts.fragment or "@" in parts.netloc or "?" in address or "#" in address:
        raise PydanticCustomError("issuer", "should be an address without a user, `?` and `#`")
    return address


def _listed(value: Any) -> Any:
    """Take one text for a list of it."""
    if isinstance(value, str):
        return (value,)
    return value


IssuerAddress: TypeAlias = Annotated[WebAddress, Field(max_length=200), AfterValidator(_an_issuer)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Audience: TypeAlias = Annotated[
    tuple[Name, ...],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
GroupName: TypeAlias = Annotated[
    str,
    shape(r"^[^\x00-\x1f\x7f]{1,200}$", "should be the name of a group as tokens have it, of at most 200 characters"),
]


class GroupOrder(Guard, frozen=True):
    """The order in which groups count: who is in several has what the first of them says."""

    def loosened(self, old: Iterable[str], new: Iterable[str]) -> str | None:
        before = list(old)
        now = list(new)
        common = min(len(before), len(now))
        if before[:common] == now[:common]:
            return None
        place = next(place for place in range(common) if before[place] != now[place])
        return (
            f"has `{now[place][:64]}` where `{before[place][:64]}` was: who is in several groups may count to another;"
            " groups that are added at the end, or taken from there, change that for nobody"
        )

    def written(self, value: Any) -> Any:
        return list(value)


GROUP_ORDER: Final = GroupOrder()


class Group(Rights):
    """What the members of one group may. Its limits are of all of them together."""

    per_member: RateLimits = RateLimits.by_default()
    """Limits of each member alone, beside those of the group."""


class Claims(Section):
    """Which claims of a token say who somebody is: a name, or a path with dots, such as `realm_access.roles`."""

    sub: Annotated[Name, SAME] = "sub"
    """What tells one person from all others, for as long as there is that person."""
    name: Name = "name"
    """What people call him; it is shown, and decides nothing."""
    groups: Annotated[Name, SAME] = "groups"
    """The groups he is in: a list of texts, or one."""


class Oidc(Section):
    """The issuer whose tokens are taken."""

    issuer: Annotated[IssuerAddress, SAME]
    """Its address, exactly as it stands in `iss` of its tokens."""
    audience: Annotated[Audience, Field(min_length=1), ONLY_THESE]
    """Whom tokens have to be for: one of these has to stand in `aud`."""
    groups: Annotated[Mapping[GroupName, Group], Field(min_length=1), AfterValidator(OrderedDict), GROUP_ORDER]
    """What the members of its groups may, by the names that tokens have. Who is in several has what the first says; `*` is everybody."""
    claims: Claims = Claims.by_default()
    """Which claims say who somebody is."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1), ONLY_THESE] = ("RS256", "PS256", "ES256", "EdDSA")
    """How tokens may be signed."""
    jwks: Annotated[WebAddress | None, SAME] = None
    """Where its keys are, in place of what its discovery document says."""
    clock_skew: Annotated[float, Field(ge=0, le=MOST_SKEW), NO_BOOLEAN, CEILING] = 60.0
    """By how many seconds clocks may differ."""
    client_id: Name | None = None
    """The public client as which the page signs in; without one it asks for a key alone."""
    scopes: tuple[Name, ...] = ("openid", "profile", "email")
    """What the page asks for when it signs in."""

    @model_validator(mode="after")
    def _everybody_comes_last(self) -> "Oidc":
        names = list(self.groups)
        if EVERYBODY in names[:-1]:
            raise PydanticCustomError(
                "everybody", "`groups`: `*` is everybody, so that no group behind it counts: put it last"
            )
        return self


class LetsIn(Guard, frozen=True):
    """Whether everyone is let in."""

    def loosened(self, old: Any, new: Any) -> str | None:
        if old == "off" or new.mode != "off":
            return None
        if not isinstance(old, str) and old.mode == "off":
            return None
        return "was `keys`, and would be `off`"

    def written(self, value: Any) -> Any:
        return value.mode


LETS_IN: Final = LetsIn()
MODES: Final = ("keys", "off")


class AuthSection(Section):
    """Who is let in."""

    mode: Literal["keys", "off"] = "keys"
    """`keys`: clients need one of `keys`, or a token of `oidc`; without any, only loopback is served. `off`: everyone is let in. The
    word alone stands for the whole."""
    oidc: Annotated[Oidc | None, READ_LATE] = None
    """The company's issuer, whose tokens are taken beside keys."""

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> "AuthSection":
        if self.mode == "off" and self.oidc is not None:
            raise PydanticCustomError("auth", "`oidc` would count for nothing: `mode: off` lets everyone in")
        return self


class _OrTheWord:
    """Allows the mode alone instead of the whole."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._section, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": [*MODES, False]}, handler(schema)]}

    def _section(self, value: Any) -> Any:
        mode = off_or_on(value)
        if isinstance(mode, str) and mode in MODES:
            return {"mode": mode}
        if isinstance(value, Mapping):
            return {**value, "mode": off_or_on(value["mode"])} if "mode" in value else value
        if isinstance(value, AuthSection):
            return value
        near = get_close_matches(str(value), MODES, 1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise PydanticCustomError("auth", "{why}", {"why": f"should be `keys`, `off`, or a mapping with `oidc`{hint}"})


Auth: TypeAlias = Annotated[AuthSection, _OrTheWord()]
