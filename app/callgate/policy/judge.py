"""Judges what a request names, before a model is asked: the one place for all APIs and routes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from callgate.callers.caller import Caller
from callgate.conversation import raw_json
from callgate.conversation.client_run_tools import is_client_run
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import JudgedFields
from callgate.policy.litellm_settings import without_settings
from callgate.policy.nameable import (
    ADDRESS,
    CALLED_BY_PROVIDERS,
    HOSTED_TOOL,
    MCP,
    OPERATORS,
    OPERATORS_BLOCKS,
    OTHER_MODEL,
    PLAIN,
    PLAIN_IN_TOOLS,
    PLAIN_TOOLS,
    RUN_ELSEWHERE,
    SELECTORS,
    SWITCHES,
    SWITCHES_IN_TOOLS,
    Rule,
)
from callgate.policy.operator_ids import KEPT_BY_PROVIDERS, WITH_ID, place_of_id

_OFF: Final = (b"null", b"false", b"[]")
_NOTHING: Final[frozenset[str]] = frozenset()


class ListedTool(Protocol):
    """A tool of a request, as far as it is judged."""

    @property
    def type(self) -> Any: ...

    @property
    def tools(self) -> "Sequence[ListedTool] | None": ...

    @property
    def has_address(self) -> bool: ...


class NamedThings(msgspec.Struct, frozen=True):
    """What a request names."""

    fields: Mapping[str, msgspec.Raw]
    """The fields of its body, in the words of its API."""
    blocks: Sequence[tuple[str, str]] = ()
    """Places and types of the content that only its own API has."""
    dotted: bool = False
    """Places are written in Anthropic's format."""
    may_have_ids: bool = True
    """False where its reader has seen that no name in it names an object of the operator's."""
    ours: frozenset[str] = _NOTHING
    """The types of tools in which its API names servers of ours."""
    tools_are_judged: bool = False
    """Its reader has asked `check_calls_nobody` for each of its tools."""


def judge_named(named: NamedThings, caller: Caller, *, may_select: bool) -> JudgedFields:
    """Return those of a request's fields that may go on. Refuses one that names what it may not. `may_select`: the entry of its
    model has `provider_selectors`."""
    is_free = "*" in caller.tools
    if "tools" in named.fields and not (is_free and named.tools_are_judged):
        _check_tools(named, caller)
    if not is_free:
        _check_switches(named.fields, caller, dotted=named.dotted)
    if not may_select:
        if not SELECTORS.isdisjoint(named.fields):
            _check_selectors(named)
        if named.may_have_ids or named.blocks:
            _check_ids(named)
    return without_settings(named.fields)


def judge_chat_fast(fields: Mapping[str, msgspec.Raw], caller: Caller) -> JudgedFields | None:
    """Equals `judge_named` for every chat whose reader has judged its tools and found no ids, or returns None."""
    if "*" in caller.tools and fields.keys() <= PLAIN:
        return fields  # type: ignore[return-value]  # all of them go on
    return None


def names_hosted(named: NamedThings) -> bool:
    """True if a request that was judged names a tool which its provider would run."""
    for name in SWITCHES.intersection(named.fields):
        if bytes(named.fields[name]).strip() not in _OFF:
            return True
    if "tools" not in named.fields:
        return False
    return any(
        True
        for place, tool in enumerate(_objects_in(named.fields["tools"]))
        for _ in _hosted_in(tool, f"tools[{place}]")
    )


def judge_form(names: Sequence[str], caller: Caller, *, may_select: bool) -> JudgedFields:
    """Return those of a form's fields that may go on, without their values. Refuses one whose fields name what they may not. Tools have no place in one."""
    for written in names:
        name, bracket, inner = written.partition("[")
        if not may_select:
            if name in SELECTORS:
                raise refusal(OTHER_MODEL, name)
            if name in KEPT_BY_PROVIDERS or (name in WITH_ID and bracket and inner.startswith("id")):
                raise refusal(OPERATORS, name)
        if name == "tools":
            raise refusal(ADDRESS, name)
        if name in SWITCHES and not caller.may_use(name):
            raise refusal(HOSTED_TOOL, name, name)
    return without_settings(dict.fromkeys(names))


def check_calls_nobody(tool: ListedTool, where: str, ours: frozenset[str] = _NOTHING, *, dotted: bool = False) -> None:
    """Refuse a tool in which a provider would take the address of a server. `ours`: the types of entries about servers of ours,
    which their reader takes out."""
    if tool.type in ours:
        return
    kind = str(tool.type).strip().lower()  # as litellm reads it
    if kind == MCP or kind in CALLED_BY_PROVIDERS or tool.has_address:
        raise refusal(ADDRESS, where, dotted=dotted)
    for index, inner in enumerate(tool.tools or ()):
        check_calls_nobody(inner, f"{where}.tools[{index}]", dotted=dotted)


def check_left_out(tool: Mapping[str, Any], where: str) -> None:
    """Refuse a tool that names what it may not, although no provider is told of it."""
    check_calls_nobody(_as_listed(tool, where), where)
    _check_left_out_ids(tool, where)


def refusal(rule: Rule, where: str, name: str = "", *, dotted: bool = False) -> ChatError:
    """Return the error for naming something. `name`: of a tool."""
    if rule is HOSTED_TOOL:
        right = f"its `tools` do not name `provider:{name[:64]}`"
        what = f"this key may not use `{name[:64]}`, which the provider would run: {right}"
    elif rule is ADDRESS:
        what = "no server of a request's choice is called"
    else:
        what = f"it would name {rule.what}, and is refused"
    message = f"{where}: {what}" if dotted else f"'{where}': {what}."
    return ChatError(rule.status, message, type=rule.type, param=where, code=rule.code)


def _check_selectors(named: NamedThings) -> None:
    for name in named.fields:
        if name in SELECTORS and bytes(named.fields[name]).strip() != b"null":
            raise refusal(OTHER_MODEL, name, dotted=named.dotted)


def _check_ids(named: NamedThings) -> None:
    where = None
    if named.may_have_ids:
        where = place_of_id(named.fields, dotted=named.dotted)
    if where is None:
        where = next((where for where, kind in named.blocks if kind in OPERATORS_BLOCKS), None)
    if where is not None:
        raise refusal(OPERATORS, where, dotted=named.dotted)


def _check_left_out_ids(value: Any, where: str) -> None:
    for name, inner in value.items() if isinstance(value, dict) else ():
        if name in KEPT_BY_PROVIDERS and isinstance(inner, str | list) and inner:
            raise refusal(OPERATORS, f"{where}.{name}")
        _check_left_out_ids(inner, f"{where}.{name}")


def _check_switches(fields: Mapping[str, msgspec.Raw], caller: Caller, *, dotted: bool) -> None:
    for name in SWITCHES.intersection(fields):
        if bytes(fields[name]).strip() not in _OFF and not caller.may_use(name):
            raise refusal(HOSTED_TOOL, name, name, dotted=dotted)


def _check_tools(named: NamedThings, caller: Caller) -> None:
    for place, tool in enumerate(_objects_in(named.fields["tools"])):
        where = f"tools.{place}" if named.dotted else f"tools[{place}]"
        if tool.keys() <= PLAIN_IN_TOOLS and _kind_of(tool, where) in PLAIN_TOOLS:
            continue
        if not named.tools_are_judged:
            check_calls_nobody(_as_listed(tool, where), where, named.ours, dotted=named.dotted)
        for inner, name in _hosted_in(tool, where):
            if not caller.may_use(name):
                raise refusal(HOSTED_TOOL, inner, name, dotted=named.dotted)


def _objects_in(tools: msgspec.Raw) -> Sequence[Mapping[str, Any]]:
    """Return the tools of a request. Refuses what is no list of objects: a provider may see more in it than we."""
    listed = raw_json.read(tools) or ()
    if isinstance(listed, list | tuple) and all(isinstance(tool, dict) for tool in listed):
        return listed
    raise ChatError(400, "Invalid type for 'tools': expected a list of objects.", param="tools", code="invalid_type")


def _hosted_in(tool: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    """Find the names under which a provider would run a tool, and their places."""
    inner = tool.get("tools")
    if isinstance(inner, list):
        for place, inner_tool in enumerate(inner):
            if isinstance(inner_tool, dict):
                yield from _hosted_in(inner_tool, f"{where}.tools[{place}]")
        return
    kind = _kind_of(tool, where)
    if kind is not None and kind not in RUN_ELSEWHERE and not is_client_run(kind):
        yield where, kind
    for name in SWITCHES_IN_TOOLS.intersection(tool):
        yield where, name


def _kind_of(tool: Mapping[str, Any], where: str) -> str | None:
    """Return the type of a tool. Refuses one that is no text."""
    kind = tool.get("type")
    if kind is None or isinstance(kind, str):
        return kind
    raise ChatError(400, f"Invalid type for '{where}.type': expected a string.", param=where, code="invalid_type")


class _DecodedTool(msgspec.Struct, frozen=True):
    """A tool whose fields are of any types."""

    type: Any
    tools: Sequence[ListedTool]
    has_address: bool


def _as_listed(tool: Mapping[str, Any], where: str) -> ListedTool:
    inner = tool.get("tools")
    if not isinstance(inner, list):
        inner = []
    has_address = any(tool.get(name) is not None for name in ("server_url", "connector_id", "tunnel_id"))
    listed = [
        _as_listed(entry, f"{where}.tools[{place}]") for place, entry in enumerate(inner) if isinstance(entry, dict)
    ]
    return _DecodedTool(_kind_of(tool, where), listed, has_address)
