"""The corpus again, with each call of a tool that is enforced written inside of a bridge: the same verdicts."""

import json
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from callgate.calls.arguments import Fragments
from callgate.calls.gate import FoundCall, settle
from callgate.calls.names import resolve_name
from callgate.calls.offer import Bridge, Offer, OfferedTool
from callgate.calls.states import Call, Finding, Flaw, ReadyCall
from callgate.conversation import turn
from tests.corpus.judge import Case, cases, turn_of_case

CALL = "call_tool"
PARAMETERS = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name", "arguments"],
}


def bridged(offer: Offer) -> Offer:
    bridge = Bridge(offer, lambda name: ())
    return {**offer, CALL: OfferedTool(CALL, PARAMETERS, lambda written: None, bridge=bridge)}


def as_string(call: FoundCall) -> str:
    return f'{{"name": {json.dumps(call.name)}, "arguments": {json.dumps(call.text())}}}'


def as_object(call: FoundCall) -> str:
    """Written as an object, whatever the arguments are."""
    return f'{{"name": {json.dumps(call.name)}, "arguments": {call.text()}}}'


def can_be_wrapped(call: FoundCall, offer: Offer) -> bool:
    """Whether it is a call of one offered tool, with arguments: without, the turn says whether something was to follow."""
    if call.name is None or call.custom or call.flaw is not None or resolve_name(call.name, offer) is None:
        return False
    return bool(call.text().strip())


def in_one_piece(call: FoundCall, text: str, name: str | None) -> FoundCall:
    fragments = Fragments()
    fragments.add(text)
    return replace(call, name=name, arguments=fragments)


def verdict(call: Call) -> tuple[str | None, Flaw | None, object]:
    if isinstance(call, ReadyCall):
        return call.name, None, call.arguments
    return None, call.flaw, None


@pytest.mark.parametrize("write", [as_string, as_object], ids=["string", "object"])
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in cases()])
def test_a_call_inside_of_a_bridge_has_the_verdict_that_it_has_alone(case: Case, write, monkeypatch):
    compared: list[tuple[str, Call, Call]] = []

    def both(found_calls: Iterable[FoundCall], offer: Offer, **how) -> tuple[Call, ...]:
        found = list(found_calls)
        for call in found:
            if can_be_wrapped(call, offer) and not (write is as_string and call.only_text):
                (alone,) = settle([in_one_piece(call, call.text(), call.name)], offer, **how)
                (inside,) = settle([in_one_piece(call, write(call), CALL)], bridged(offer), **how)
                compared.append((call.text(), alone, inside))
        return settle(found, offer, **how)

    monkeypatch.setattr(turn, "settle", both)
    turn_of_case(case)
    for text, alone, inside in compared:
        if write is as_object and isinstance(alone, ReadyCall) and Finding.ARGUMENTS_REPAIRED in alone.findings:
            # What is repaired in arguments alone may be no JSON within others: such a call is broken, and never another.
            assert not isinstance(inside, ReadyCall) or verdict(inside) == verdict(alone), text
        elif write is as_object and not isinstance(alone, ReadyCall):
            assert not isinstance(inside, ReadyCall), text
        else:
            assert verdict(inside) == verdict(alone), text
