"""Taint: once a model has read words that others wrote, its calls that may change something need a person's approval.

What a web page or a mail says may talk a model into any call. Which results hold such words is written at their tools
(`untrusted: on`); nothing of their content is judged. It holds from the turn after such a result to the end of the chat, and in later
requests whose history has such a call, or a summary, which says nothing of the calls that it stands for.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import Call, ReadyCall
from callgate.conversation.context import holds_summary
from callgate.conversation.hidden_history import names_called
from callgate.conversation.ports import Begin, Message, Plan, Report, Toolbox, begin_at_once
from callgate.conversation.wrapper_toolbox import WrapperToolbox

_WITHOUT_WORDS = frozenset({FailureKind.NOT_RUN, FailureKind.REFUSED, FailureKind.TIMEOUT, FailureKind.UNKNOWN})
"""Failures whose text is Callgate's own."""


SUMMARIZED_TOOLS: Final = "tools before a summary"
"""Stands for the tool whose results a conversation was summarized with."""


class Taint:
    """What a chat knows of the words of others in it."""

    def __init__(
        self, is_untrusted: Callable[[str], bool], is_of_request: Callable[[str], bool] = lambda name: False
    ) -> None:
        """`is_untrusted` says of the name of a tool whether its results hold words of others; `is_of_request`, whether its server is one
        that the request names by its address."""
        self._is_untrusted = is_untrusted
        self._is_of_request = is_of_request
        self._read = ""
        self._read_of_ours = ""
        self.source = ""
        """The tool whose result the model had read when it wrote the calls of this turn; empty where there was none."""
        self._source_of_ours = ""

    def begin_turn(self) -> None:
        """Begin with the calls that the model wrote after all results so far."""
        self.source = self._read
        self._source_of_ours = self._read_of_ours

    def source_for(self, *, of_request: bool) -> str:
        """Return the tool on whose account a call waits; empty where there is none. What servers say that the client named counts for
        tools of the config, and not for calls of such servers: the client has chosen what these hear of one another."""
        if of_request:
            return self._source_of_ours
        return self.source

    def note(self, name: str, outcome: Outcome) -> None:
        """Note the outcome of a call, which the model reads before its next turn."""
        if isinstance(outcome, Failed) and outcome.kind in _WITHOUT_WORDS:
            return
        self._note_names((name,))

    def watch(self, toolbox: Toolbox, history: Sequence[Message]) -> Toolbox:
        """Return the toolbox of a chat that goes on from a history."""
        self._note_names(names_called(history))
        if not self._read and holds_summary(history):
            self._read = self._read_of_ours = SUMMARIZED_TOOLS  # which of them were called nobody knows any more
        self.begin_turn()
        return _WatchedToolbox(toolbox, self)

    def _note_names(self, names: Iterable[str]) -> None:
        if self._read_of_ours:
            return
        for name in filter(self._is_untrusted, names):
            self._read = self._read or name
            if not self._is_of_request(name):
                self._read_of_ours = name
                return


def reason_to_wait(source: str) -> str:
    """Return in words why a call that may change something waits."""
    return f"the model has read a result of `{source}`, which may hold instructions of others, and this tool may change something"


class _WatchedToolbox(WrapperToolbox):
    """Notes whose results the model reads. It is around all others, so that results from an earlier process count."""

    def __init__(self, inner: Toolbox, taint: Taint) -> None:
        super().__init__(inner)
        self._taint = taint

    def plan(self, calls: Sequence[Call]) -> Plan:
        self._taint.begin_turn()
        return self._inner.plan(calls)

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        outcome = await self._inner.run(call, report, begin)
        self._taint.note(call.name, outcome)
        return outcome
