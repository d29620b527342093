"""The caller of a request: its name, and what it may ask, use and see."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec

from callgate.callers.allowance import UNLIMITED, Allowance
from callgate.calls.search_setting import SearchSetting

See: TypeAlias = Literal["none", "own", "all"]
ToolEvents: TypeAlias = Literal["off", "x", "reasoning", "openwebui"]
OfferSetting: TypeAlias = Literal["any", "with_client_tools"]
Keyless: TypeAlias = Literal["nobody", "this_machine", "everybody"]
UsageSetting: TypeAlias = Literal["auto", "sum", "last_turn"]


OF_PROVIDERS: Final = "provider:"
"""What names of tools begin with that providers run: `provider:web_search*`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request, identified by its key."""

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
    allowance: Allowance = UNLIMITED

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


def owner_name(caller: Caller) -> str:
    """Return the owner of stored things. No key's name can be taken for anonymous."""
    if caller.anonymous:
        return "anonymous"
    return f"key {caller.name}"


@lru_cache(maxsize=4096)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))
