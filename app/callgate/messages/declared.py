"""Asks what stands for the tools that requests to a model declare."""

from callgate.callers.caller import Caller
from callgate.hosted.declared import StandIns
from callgate.models.resolve import has_messages_wire, lane_of
from callgate.runtime import stand_ins
from callgate.runtime.runtime import Runtime


def stand_ins_of(runtime: Runtime, caller: Caller, model: str) -> StandIns:
    entry = runtime.check_model(model, caller)
    may_pass = has_messages_wire(entry) and lane_of(entry) == "translated"
    return stand_ins.stand_ins_of(runtime.config, runtime.offered, entry, caller, may_pass=may_pass)
