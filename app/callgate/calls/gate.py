"""The gate: turns each call that was found in a turn into a `ReadyCall` or a `BrokenCall`, once.

The checks and their order are fixed, so that a call has one flaw and always the same one: did the provider finish the
turn, has the call a name, is that an offered tool, do its arguments make one object, was it being written when the
answer reached its length limit, does the object satisfy the schema.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.calls.arguments import Arguments, ArgumentsError, Fragments, encode_arguments, take_object
from callgate.calls.coercion import coerce
from callgate.calls.json_text import JsonFault, join_halves, read_json, sound_text
from callgate.calls.names import ToolName, close_names, inner_calls, is_parallel, resolve_name
from callgate.calls.offer import Bridge, Offer, OfferedTool
from callgate.calls.states import BrokenCall, Call, Finding, Flaw, FlawDetail, ReadyCall, Wrapping

WRAPPER_PARAMETERS = frozenset({"arguments", "parameters", "input"})
"""Names of a parameter into which models that write tags put all arguments as JSON."""

MAX_NOTED = 120
"""Characters of an unknown name in the explanation."""


class FoundCall(msgspec.Struct, frozen=True, gc=False):
    """A call of a turn, not yet checked."""

    id: str
    name: str | None
    arguments: Fragments | dict[str, Any]
    """The arguments that came; an object only where one of our readers of text formats made it."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while its fragments were assembled."""
    flaw: Flaw | None = None
    """What the reader of a text format found wrong with it."""
    repaired: bool = False
    only_text: bool = False
    undeclared_json: bool = False
    from_text: bool = False
    is_alone: bool = True
    """No prose stands behind it in the text that it was read out of."""
    in_order: bool = True
    """The body of the answer ended with its end mark."""
    ended: bool = True
    """It did, and the provider had said `stop` or `tool_calls` with the call's last fragment or after it."""
    reason_came_before: bool = False
    """The provider had given a finish reason before the call's last fragment, so that one proves nothing."""
    at_once: bool = False
    """Its arguments came in one piece, and servers close the brackets of an object that was cut off."""
    unwrapped: bool = False
    """It was one of several inside a wrapper, where names always carry a namespace."""
    extras: Mapping[str, Any] = msgspec.field(default_factory=dict)
    custom: bool = False
    """A call of a custom tool: its arguments are free text."""

    def text(self) -> str:
        if isinstance(self.arguments, dict):
            return encode_arguments(self.arguments)
        return self.arguments.text()

    def read(self) -> Arguments:
        if isinstance(self.arguments, dict):
            read = take_object(self.arguments)
        else:
            read = self.arguments.read()
        if self.repaired:
            return replace(read, repaired=True)
        return read


def settle(
    found_calls: Iterable[FoundCall], offer: Offer, *, failure: Flaw | None, at_length: bool, new_id: Callable[[], str]
) -> tuple[Call, ...]:
    """Check all calls of a turn, in their order. `failure` is the reason why none of them may run, if there is one;
    `at_length`: the answer was cut at its length limit, in the last of these calls."""
    calls = [inner for call in found_calls for inner in _unwrapped(call, offer, new_id)]
    last = len(calls) - 1
    return tuple(
        _settled(call, offer, failure, being_written=at_length and place == last and not call.from_text)
        for place, call in enumerate(calls)
    )


def ready_call_fast(id_: str, name: str, written: str, offer: Offer) -> ReadyCall | None:
    """Equals what `settle` makes of a call with these arguments after which the turn ended in order, or returns None: for one that is
    whole as it was written, and to which nothing has to be done."""
    if name not in offer:
        return None
    tool = offer[name]
    text = join_halves(written)
    try:
        arguments = read_json(text)
    except JsonFault:
        return None
    if type(arguments) is not dict or tool.bridge is not None:
        return None
    check = tool.check
    if check is not None and (coerce(arguments, tool.parameters) is not arguments or check(arguments) is not None):
        return None
    return ReadyCall(id_, name, arguments, text)


def _settled(call: FoundCall, offer: Offer, failure: Flaw | None, *, being_written: bool) -> Call:
    raw = (call.name or "").strip()
    tool_name = resolve_name(call.name or "", offer)
    if failure is not None:
        return _broken(call, tool_name.name if tool_name else raw or None, failure)
    if not raw:
        return _nameless(call)
    if tool_name is None:
        return _unknown(call, raw, offer)
    if call.flaw is not None:
        return _broken(call, tool_name.name, call.flaw, _detail_of_arguments(call))
    tool = offer[tool_name.name]
    if call.custom and tool.check is None:
        return _settled_custom(call, tool_name.name, being_written=being_written)
    try:
        arguments = call.read()
    except ArgumentsError as error:
        return _broken(call, tool_name.name, error.flaw, error.problem)
    if problem := _was_cut(call, arguments, tool, being_written=being_written):
        return _broken(call, tool_name.name, Flaw.TRUNCATED, problem)
    if tool.bridge is not None:
        return _settled_inside(call, arguments, tool, tool.bridge, offer, being_written=being_written)
    unwrapped = _without_wrapper(arguments.value, tool) if call.from_text else None
    written = arguments.value if unwrapped is None else unwrapped
    value = _as_declared(written, tool, call)
    if tool.check is not None and (problem := tool.check(value)) is not None:
        return _broken(call, tool_name.name, Flaw.SCHEMA_MISMATCH, problem)
    is_repaired = arguments.repaired or unwrapped is not None
    is_coerced = value is not written and not call.only_text
    findings = _findings(call, tool_name, is_repaired=is_repaired, is_coerced=is_coerced)
    ready = ReadyCall(call.id, tool_name.name, value, call.text(), findings, call.extras)
    return ready if call.is_alone else _not_alone(ready)


def _findings(call: FoundCall, tool_name: ToolName, *, is_repaired: bool, is_coerced: bool) -> tuple[Finding, ...]:
    if not (call.unwrapped or tool_name.repaired or is_repaired or is_coerced):
        return call.findings
    noticed = list(call.findings)
    if call.unwrapped:
        noticed.append(Finding.PARALLEL_UNWRAPPED)
    elif tool_name.repaired:
        noticed.append(Finding.NAME_REPAIRED)
    if is_repaired:
        noticed.append(Finding.ARGUMENTS_REPAIRED)
    if is_coerced:
        noticed.append(Finding.ARGUMENTS_COERCED)
    return tuple(noticed)


def _settled_inside(
    call: FoundCall, arguments: Arguments, tool: OfferedTool, bridge: Bridge, offer: Offer, *, being_written: bool
) -> Call:
    """Settle the call that is written inside a whole call of a bridge, as if the model had made it by its own name."""
    written = arguments.value
    if tool.check is not None and (problem := tool.check(written)) is not None:
        return _broken(call, tool.name, Flaw.SCHEMA_MISMATCH, problem)
    inside = written.get("arguments")
    if inside is None and being_written:
        note = "the answer had become too long while this call was being written"
        return _broken(call, tool.name, Flaw.TRUNCATED, FlawDetail(expected="`arguments`", note=note))
    if _is_plain(call, arguments):
        wrapping = Wrapping(tool.name, call.text())
    else:
        wrapping = Wrapping(tool.name, encode_arguments(written))
    name: str = written["name"]
    is_repaired = arguments.repaired or isinstance(inside, str)
    # A string of JSON has values of all types, also in a format that has nothing but text.
    only_text = call.only_text and isinstance(inside, dict)
    inner = replace(call, name=name, arguments=_as_written(inside), repaired=is_repaired, only_text=only_text)
    if name.strip() and resolve_name(name, bridge.inner) is None:
        return _unknown_inside(inner, wrapping, bridge, offer)
    settled_call = _settled(inner, bridge.inner, None, being_written=being_written)
    if settled_call.name not in (name, None):  # whoever reads the history goes by the tool's own name
        wrapping = Wrapping(tool.name, encode_arguments({**written, "name": settled_call.name}))
    return replace(settled_call, wrapping=wrapping)


def _as_written(inside: Any) -> Fragments | dict[str, Any]:
    """Return the arguments inside a bridge as those of a call of its own."""
    if isinstance(inside, dict):
        return inside
    fragments = Fragments()
    fragments.add(inside)
    return fragments


def _is_plain(call: FoundCall, arguments: Arguments) -> bool:
    """True if the text of a call is one JSON object, as providers require it in the history."""
    return not arguments.repaired and call.text().lstrip().startswith("{")


def _unknown_inside(call: FoundCall, wrapping: Wrapping, bridge: Bridge, offer: Offer) -> BrokenCall:
    """Break a call inside a bridge whose name none of the tools behind it has. It gets the name of the bridge where its own is that
    of a tool beside it: nobody may take it for a call of that."""
    name = (call.name or "").strip()
    if resolve_name(name, offer) is not None:
        note = f"{name[:MAX_NOTED]} is not called through {wrapping.name}: call it by itself"
        problem = FlawDetail(expected="the exact name of a tool that was found", got=name[:MAX_NOTED], note=note)
        return replace(_broken(call, wrapping.name, Flaw.UNKNOWN_TOOL, problem), wrapping=wrapping)
    near = bridge.near(name)
    note = ""
    if near:
        note = f"did you mean {' or '.join(near)}?"
    problem = FlawDetail(expected="the exact name of a tool that was found", got=name[:MAX_NOTED], note=note)
    return replace(_broken(call, name, Flaw.UNKNOWN_TOOL, problem), wrapping=wrapping)


def _unknown(call: FoundCall, name: str, offer: Offer) -> BrokenCall:
    near = close_names(name, offer)
    note = ""
    if near:
        note = f"did you mean {' or '.join(near)}?"
    problem = FlawDetail(expected="the exact name of a tool that is on offer", got=name[:MAX_NOTED], note=note)
    return _broken(call, name, Flaw.UNKNOWN_TOOL, problem)


def _not_alone(call: ReadyCall) -> BrokenCall:
    return BrokenCall(call.id, call.name, Flaw.NOT_ALONE, encode_arguments(call.arguments), extras=call.extras)


def _settled_custom(call: FoundCall, name: str, *, being_written: bool) -> Call:
    """Check a call of a custom tool: free text is whole unless the answer was cut off in it."""
    if being_written or not call.in_order or (not call.ended and not call.text().strip()):
        return _broken(call, name, Flaw.TRUNCATED)
    return ReadyCall(call.id, name, {}, sound_text(call.text()), call.findings, call.extras, custom=True)


def _broken(call: FoundCall, name: str | None, flaw: Flaw, problem: FlawDetail | None = None) -> BrokenCall:
    return BrokenCall(call.id, name and sound_text(name), flaw, sound_text(call.text()), problem, call.extras)


def _nameless(call: FoundCall) -> BrokenCall:
    """Break a call without a name. A flaw that the reader of the text found comes before the missing name."""
    if call.flaw is not None:
        return _broken(call, None, call.flaw, _detail_of_arguments(call))
    return _broken(call, None, Flaw.MISSING_NAME, FlawDetail(expected="the name of a tool that is on offer"))


def _detail_of_arguments(call: FoundCall) -> FlawDetail | None:
    """Return the detail that the arguments show of a flaw found by the reader of the text."""
    try:
        call.read()
    except ArgumentsError as error:
        if error.flaw is call.flaw:
            return error.problem
        return None
    return None


def _was_cut(call: FoundCall, arguments: Arguments, tool: OfferedTool, *, being_written: bool) -> FlawDetail | None:
    """Return the evidence that a call was cut off although its arguments make an object.

    No arguments mean `{}` only where the provider ended the turn in order. Where it sends a finish reason with every chunk
    and the body broke off, more may have followed. At the length limit some servers close the brackets of a cut object;
    then only missing properties show that it was cut.
    """
    if call.ended and not being_written:
        return None
    value = arguments.value
    declared = tool.parameters.get("properties")
    if not call.ended:
        may_go_on = arguments.repaired or (not value and declared)
        if arguments.absent or (call.reason_came_before and not call.in_order and may_go_on):
            return FlawDetail(expected="arguments", got="none", note="the answer was cut off before they came")
    if not being_written:
        return None
    note = "the answer had become too long while this call was being written"
    if call.at_once:
        return FlawDetail(expected="all of its arguments", note=note)
    if not value and declared:
        return FlawDetail(expected="arguments", got="{}", note=note)
    required = tool.parameters.get("required")
    if isinstance(required, Sequence):
        missing = [name for name in required if name not in value]
    else:
        missing = []
    if missing:
        return FlawDetail(expected=f"the properties {', '.join(map(str, missing))}", note=note)
    return None


def _as_declared(value: dict[str, Any], tool: OfferedTool, call: FoundCall) -> dict[str, Any]:
    """Convert strings by the schema: always where the format carries nothing but text, otherwise only for our tools, whose
    schemas we enforce."""
    if tool.check is None and not call.only_text:
        return value
    return coerce(value, tool.parameters, only_text=call.only_text, undeclared_json=call.undeclared_json)


def _without_wrapper(value: dict[str, Any], tool: OfferedTool) -> dict[str, Any] | None:
    """Return the arguments out of one wrapping parameter that the tool does not have; None if there is no such wrapper."""
    if len(value) != 1:
        return None
    ((name, inside),) = value.items()
    declared = tool.parameters.get("properties")
    if name not in WRAPPER_PARAMETERS or not isinstance(declared, Mapping) or not declared or name in declared:
        return None
    if isinstance(inside, str):
        with contextlib.suppress(JsonFault):
            inside = read_json(inside)
    if isinstance(inside, dict) and inside.keys() <= declared.keys():
        return inside
    return None


def _unwrapped(call: FoundCall, offer: Offer, new_id: Callable[[], str]) -> Sequence[FoundCall]:
    """Return the calls inside a wrapper, or the call itself if it is not exactly of that shape."""
    if call.name in offer:
        return (call,)
    inner = _inner(call, offer)
    if inner is None:
        return (call,)
    wrapper, uses = inner
    findings = tuple(finding for finding in call.findings if finding is not Finding.ID_REPAIRED)
    return [
        FoundCall(
            new_id(),
            name,
            parameters,
            findings,
            repaired=wrapper.repaired,
            from_text=call.from_text,
            is_alone=call.is_alone,
            in_order=call.in_order,
            ended=call.ended,
            reason_came_before=call.reason_came_before,
            at_once=call.at_once,
            unwrapped=True,
            extras={} if place else call.extras,
        )
        for place, (name, parameters) in enumerate(uses)
    ]


def _inner(call: FoundCall, offer: Offer) -> tuple[Arguments, list[tuple[str, dict[str, Any]]]] | None:
    if call.name is None or call.flaw is not None or not is_parallel(call.name, offer):
        return None
    try:
        wrapper = call.read()
    except ArgumentsError:
        return None
    uses = inner_calls(wrapper.value)
    if uses is None:
        return None
    return (wrapper, uses)
