"""Judges what of a response's request is no part of a chat, and gathers what goes on to a model behind the same API."""

from collections.abc import Mapping

import msgspec

from callgate.api.field_errors import wrong
from callgate.callers.caller import Caller
from callgate.hosted.declared import StandIns
from callgate.models.resolve import ModelConfig, lane_of
from callgate.policy.judge import NamedThings, judge_named
from callgate.responses.offered import Offered
from callgate.responses.original import OriginalResponse, names_of, own_fields
from callgate.responses.request import NOT_CARRIED, READ
from callgate.runtime import stand_ins
from callgate.runtime.runtime import Runtime

_encode = msgspec.json.Encoder().encode


def judge_others(fields: Mapping[str, msgspec.Raw], caller: Caller, *, may_select: bool) -> None:
    """Judge the fields that become no part of a chat."""
    if others := fields.keys() - READ:
        judge_named(NamedThings({name: fields[name] for name in others}), caller, may_select=may_select)
        for name in NOT_CARRIED.keys() & others:
            if bytes(fields[name]).strip() != b"null":
                raise wrong(name, f"{NOT_CARRIED[name]} '{name}' is refused.", "unsupported_parameter")


def reaches_provider(entry: ModelConfig) -> bool:
    """True if tools that nobody here has go on to the model's provider, which has this API."""
    return lane_of(entry) == "responses"


def stand_ins_of(runtime: Runtime, entry: ModelConfig, caller: Caller) -> StandIns:
    """Return what stands for the tools that requests of a caller to a model declare."""
    may_pass = reaches_provider(entry)
    return stand_ins.stand_ins_of(runtime.config, runtime.offered, entry, caller, may_pass=may_pass)


def original_of(
    fields: Mapping[str, msgspec.Raw], offered: Offered, caller: Caller, entry: ModelConfig
) -> OriginalResponse | None:
    """Return what only this API has; None where it is nothing. Tools that the model's provider runs go on where it has this API
    and the key may use them."""
    own = own_fields(fields)
    if "context_management" in own and lane_of(entry) != "responses":
        del own["context_management"]  # done here
    unplaced = sorted(offered.unplaced)
    if own:
        unplaced = [*names_of(own), *unplaced]
    if offered.elsewhere and reaches_provider(entry):
        tools = [tool for tool in offered.elsewhere if caller.may_use(tool["type"])]
        offered.elsewhere = [tool for tool in offered.elsewhere if not caller.may_use(tool["type"])]
        if tools:
            own["tools"] = msgspec.Raw(_encode(tools))
    if not own and not unplaced and not offered.native:
        return None
    judged = judge_named(NamedThings(own), caller, may_select=entry.provider_selectors)
    return OriginalResponse(fields=judged, functions=offered.further, native=offered.native, unplaced=unplaced)
