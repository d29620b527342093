"""The caller of a request: its name, and what it may ask, use and see."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from callgate.callers.allowance import UNLIMITED, Allowance
from callgate.calls.search_setting import SearchSetting

if TYPE_CHECKING:  # imported with the first key that may name servers
    from callgate.callers.client_mcp import ClientMcp

See: TypeAlias = Literal["none", "own", "all"]
ToolEvents: TypeAlias = Literal["off", "x", "reasoning", "openwebui"]
OfferSetting: TypeAlias = Literal["any", "with_client_tools"]
Keyless: TypeAlias = Literal["nobody", "this_machine", "everybody"]
UsageSetting: TypeAlias = Literal["auto", "sum", "last_turn"]


OF_PROVIDERS: Final = "provider:"
"""What names of tools begin with that providers run: `provider:web_search*`."""


class Person(msgspec.Struct, frozen=True):
    """Somebody who signed in at the company's issuer."""

    issuer: str
    subject: str
    """What the issuer tells people apart by."""
    shown: str
    """What people call him, by his token."""
    group: str
    """The group whose rights he has."""
    account: str
    """Under which name his limits are counted: his group's, or his own where it has none."""
    alone: Allowance = UNLIMITED
    """His limits beside those of his group."""


class Caller(msgspec.Struct, frozen=True):
    """The client of a request, identified by its key or by the token of a person."""

    name: str
    models: tuple[str, ...] = ("*",)
    """Names or globs."""
    tools: tuple[str, ...] = ("*",)
    anonymous: bool = False
    approve: bool = False
    """Its key may decide about calls that wait for approval."""
    admin: bool = False
    """Its key may reload the config."""
    see: See = "none"
    """Which recorded runs its key may see."""
    events: ToolEvents | None = None
    """How responses show that tools run, where the request does not set it."""
    usage: UsageSetting | None = None
    """Which token counts answers report, where the request does not set it."""
    offer: OfferSetting | None = None
    """Which requests our tools are offered to; None where its model says."""
    tool_search: SearchSetting | None = None
    """How its tools are kept out of prompts; None where its model says."""
    client_mcp: "ClientMcp | None" = None
    """Which MCP servers its requests may name by their addresses; None for none."""
    allowance: Allowance = UNLIMITED
    person: Person | None = None
    """Who signed in; None for a key."""

    def may_ask(self, model: str) -> bool:
        return _is_named(model, self.models)

    def may_use(self, hosted_tool: str) -> bool:
        """Return whether it may use a tool that a provider runs, by the type that it has there."""
        own = [name.removeprefix(OF_PROVIDERS) for name in self.tools if name.startswith(OF_PROVIDERS)]
        return "*" in self.tools or _is_named(hosted_tool, own)


def _is_named(name: str, globs: Sequence[str]) -> bool:
    return "*" in globs or any(glob == name or _compiled(glob).match(name) is not None for glob in globs)


ANONYMOUS: Final = Caller("anonymous", anonymous=True)


class Principal(msgspec.Struct, frozen=True):
    """On whose behalf calls are made, where a tool's server is to know: of this its identities are made."""

    owner: str = ""
    """The owner of the request's key (`owner_name` of its caller); empty where calls are made for nobody's request."""
    user: str = ""
    """The user that the request names."""
    headers: Mapping[str, str] = {}
    """The request's headers without credentials, of which those may be sent on that an entry lists."""
    withheld: frozenset[str] = frozenset()
    """Headers that are left out because they have the credential of the request."""

    def kept_for(self) -> str:
        """Return whose things are kept apart from everybody else's."""
        return f"{self.owner}\0{self.user}"


NOBODY: Final = Principal()

OF_PERSON: Final = "person "
"""What the owner of stored things begins with where that is a person who signed in."""


def owner_name(caller: Caller) -> str:
    """Return the owner of stored things. No key's name can be taken for anonymous, or for a person."""
    if caller.anonymous:
        return "anonymous"
    if caller.person is not None:
        return OF_PERSON + caller.name
    return f"key {caller.name}"


def account_of(caller: Caller) -> str:
    """Return the name under which the limits of a caller are counted, which has few values: its key's or its group's."""
    if caller.person is None:
        return caller.name
    return caller.person.account


def accounts_of(caller: Caller) -> Sequence[tuple[str, Allowance]]:
    """Return the names under which the use of a caller is counted, each with its limits: his own before those that he shares."""
    person = caller.person
    if person is None or person.alone is UNLIMITED:
        return ((account_of(caller), caller.allowance),)
    return ((caller.name, person.alone), (person.account, caller.allowance))


def words_for(caller: Caller) -> str:
    """Return who a caller is, for people who read what he decided: a name that may be anybody's with one that is his alone."""
    if caller.person is None or caller.person.shown == caller.person.subject:
        return caller.name
    return f"{caller.person.shown} ({caller.name})"


@lru_cache(maxsize=4096)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))
