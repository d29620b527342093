"""The toolbox of a request that declares such tools: keeps the limits that the request sets for their calls."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.conversation.ports import Begin, Report, Toolbox, begin_at_once
from callgate.conversation.wrapper_toolbox import WrapperToolbox
from callgate.hosted.declared import HostedTool

USED_UP: Final = "Not run: the request allows no further use of this tool. Answer with what is known by now."
NO_TEXT: Final = "[It returned no text.]"
NOT_ALLOWED: Final = "Not run: the request does not allow this address."

Keep: TypeAlias = Callable[[ReadyCall, str], Awaitable[None]]
"""Keeps a call with its result, for when the client sends back what it was shown of it."""

_encode = msgspec.json.Encoder().encode


class HostedToolbox(WrapperToolbox):
    """Counts the calls of declared tools, and gives them what the request fixes."""

    def __init__(self, inner: Toolbox, tools: Mapping[str, HostedTool], keep: Keep | None = None) -> None:
        """`tools`: by the names in the chat."""
        super().__init__(inner)
        self._tools = tools
        self._keep = keep
        self._uses: Counter[str] = Counter()

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        tool = self._tools.get(call.name)
        if tool is None:
            return await self._inner.run(call, report, begin)
        self._uses[call.name] += 1
        bounded = self._bounded(call, tool)
        if isinstance(bounded, Failed):
            await begin()
            return bounded
        outcome = await self._inner.run(bounded, report, begin)
        if self._keep is not None:
            await self._keep(call, outcome.text or NO_TEXT)
        return outcome

    def _bounded(self, call: ReadyCall, tool: HostedTool) -> ReadyCall | Failed:
        """Return the call within the limits of the request, or why it may not run."""
        if tool.max_uses is not None and self._uses[call.name] > tool.max_uses:
            return Failed(USED_UP, FailureKind.NOT_RUN)
        if tool.domains is not None and not all(map(tool.domains.admits, _texts(call.arguments.get(tool.subject)))):
            return Failed(NOT_ALLOWED, FailureKind.REFUSED)
        if not tool.fixed and not tool.bounds:
            return call
        arguments = {**call.arguments, **tool.fixed}
        arguments |= {name: rules.narrowed(call.arguments.get(name)) for name, rules in tool.bounds.items()}
        check = self._inner.offer[call.name].check
        if check is not None and (problem := check(arguments)) is not None:
            text = (
                f"Not run: what the request says of this tool does not fit it ({problem.pointer}: {problem.expected})."
            )
            return Failed(text, FailureKind.NOT_RUN)
        return replace(call, arguments=arguments, text=_encode(arguments).decode())


def _texts(value: Any) -> list[str]:
    """Return the addresses in an argument; one that no rule admits where there is something else."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [str(text) for text in value]
    return [""]
