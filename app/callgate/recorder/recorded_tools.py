"""The tools of a replayed run: those of the recording, which return their recorded results and run nothing, or ours, of which
those that are not read-only need an approval. Of a request that asks for approvals, those that it names.
"""

from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation.ports import Begin, Plan, Report, begin_at_once
from callgate.recorder.replayable import RecordedResult, call_key
from callgate.tools.schema import SchemaError, compile_schema

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
        self._results = {key: deque(recorded) for key, recorded in results.items()}
        functions = [tool.get("function") or tool.get("custom") or {} for tool in tools]
        described = [(tool.get("name", ""), tool.get("parameters") or {}) for tool in functions]
        self.offer: Offer = {
            name: OfferedTool(name, parameters, None if name in clients else _check(parameters))
            for name, parameters in described
        }
        self._definitions: Sequence[msgspec.Raw] = [msgspec.Raw(msgspec.json.encode(tool)) for tool in tools]

    def definitions(self) -> Sequence[msgspec.Raw]:
        return self._definitions

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
        results = self._results.get(call_key(call.name, call.arguments))
        if not results:
            raise CallNotRecorded(call)
        await begin()
        result = results.popleft() if len(results) > 1 else results[0]
        if result.outcome == "returned":
            return Returned(result.text)
        return Failed(result.text, FailureKind(result.outcome))


def _check(parameters: Mapping[str, Any]) -> Any:
    try:
        return compile_schema(parameters)
    except SchemaError:
        return None  # a schema that was adapted to a dialect may not be valid any more
