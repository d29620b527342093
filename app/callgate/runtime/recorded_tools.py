"""The tools of a replayed run: those of the recording, which return their recorded results and run nothing, or ours, of which
those that are not read-only need an approval. Of a request that asks for approvals, those that it names.
"""

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.selection import ToolOrigin
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation.ports import Begin, Plan, Report, begin_at_once
from callgate.recorder.replayable import RecordedResult, call_key
from callgate.tools.schema import SchemaError, compile_schema
from callgate.tools.toolbox import ToolSet

NOT_RECORDED: Final = "call not in the recording"


class CallNotRecorded(Exception):
    """Raised where the model made a call that is not in the recording, so that there is no result."""

    def __init__(self, call: ReadyCall) -> None:
        super().__init__(f"{NOT_RECORDED}: {call.name} {call.text[:200]}")


class RecordedToolbox:
    """Offers the recorded tools, and answers with their recorded results."""

    def __init__(
        self, tools: Sequence[Any], clients: Container[str], results: Mapping[str, Sequence[RecordedResult]]
    ) -> None:
        """`clients`: the names of the tools that came in the request."""
        self._clients = clients
        self._results = {key: deque(found) for key, found in results.items()}
        functions = [tool.get("function") or tool.get("custom") or {} for tool in tools]
        described = [(each.get("name", ""), each.get("parameters") or {}) for each in functions]
        self.offer: Offer = {
            name: OfferedTool(name, parameters, None if name in clients else _check(parameters))
            for name, parameters in described
        }
        self.schemas: Sequence[msgspec.Raw] = [msgspec.Raw(msgspec.json.encode(tool)) for tool in tools]

    def plan(self, calls: Sequence[Call]) -> Plan:
        whole = [call for call in calls if isinstance(call, ReadyCall)]
        return Plan(
            ours=tuple(call for call in whole if call.name not in self._clients),
            theirs=tuple(call for call in whole if call.name in self._clients),
            broken=tuple(call for call in calls if isinstance(call, BrokenCall)),
        )

    def is_clients(self, name: str | None) -> bool:
        return name is not None and name in self._clients

    def writes(self, call: ReadyCall) -> bool:
        return False

    def is_ordered(self, call: ReadyCall) -> bool:
        return False

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        """Return the recorded result of a call; for several equal calls one after the other, and then the last one again."""
        found = self._results.get(call_key(call.name, call.arguments))
        if not found:
            raise CallNotRecorded(call)
        await begin()
        result = found.popleft() if len(found) > 1 else found[0]
        if result.outcome == "returned":
            return Returned(result.text)
        return Failed(result.text, FailureKind(result.outcome))


def asking_first(tools: ToolSet) -> ToolSet:
    """Return the tools with approval required for all that are not read-only."""
    return asking_for(tools, lambda origin: not origin.read_only)


def asking_for(tools: ToolSet, asks: Callable[[ToolOrigin], bool]) -> ToolSet:
    """Return the tools with approval required for some of them as well."""
    return ToolSet(
        replace(each, tool=replace(each.tool, policy=replace(each.tool.policy, require_approval=True)))
        if asks(each.origin)
        else each
        for each in tools.by_name.values()
    )


def _check(parameters: Mapping[str, Any]) -> Any:
    try:
        return compile_schema(parameters)
    except SchemaError:
        return None  # a schema that was adapted to a dialect may not be valid any more
