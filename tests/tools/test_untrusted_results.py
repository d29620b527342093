"""What a chat knows of the words of others in it."""

from collections.abc import Mapping
from typing import Any

import pytest

from callgate.calls.outcome import Failed, FailureKind, Returned
from callgate.calls.states import ReadyCall
from callgate.conversation.ports import Begin, ProgressReport, Report, begin_at_once
from callgate.conversation.wrapper_toolbox import WrapperToolbox
from callgate.tools.toolbox import ClientsOnly
from callgate.tools.untrusted_results import Taint

pytestmark = pytest.mark.anyio

READ = ReadyCall("c", "read_page", {}, "{}")


class Replayed(WrapperToolbox):
    """Gives results that were stored, as a run does that another process carries on."""

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Returned | Failed:
        return Returned("words") if call.name == "read_page" else Failed("Not run.", FailureKind.NOT_RUN)


def taint() -> Taint:
    return Taint({"read_page", "read_mail"}.__contains__)


async def report(progress: ProgressReport) -> None: ...


async def test_a_stored_result_counts_from_the_next_turn_on() -> None:
    of_chat = taint()
    toolbox = of_chat.watch(Replayed(ClientsOnly(tuple)), ())
    toolbox.plan([READ])
    await toolbox.run(READ, report, begin_at_once)
    assert of_chat.source == ""
    toolbox.plan([])
    assert of_chat.source == "read_page"


@pytest.mark.parametrize("kind", [FailureKind.NOT_RUN, FailureKind.REFUSED, FailureKind.TIMEOUT, FailureKind.UNKNOWN])
def test_a_failure_in_our_own_words_does_not_count(kind: FailureKind) -> None:
    of_chat = taint()
    of_chat.note("read_mail", Failed("ours", kind))
    of_chat.begin_turn()
    assert of_chat.source == ""


@pytest.mark.parametrize("kind", [FailureKind.RAISED, FailureKind.UNAVAILABLE])
def test_a_failure_in_the_words_of_the_tool_counts(kind: FailureKind) -> None:
    of_chat = taint()
    of_chat.note("read_mail", Failed("theirs", kind))
    of_chat.begin_turn()
    assert of_chat.source == "read_mail"


@pytest.mark.parametrize(
    "message, source",
    [
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "read_page"}}]}, "read_page"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "other"}}]}, ""),
        ({"role": "assistant", "tool_calls": None}, ""),
        ({"role": "assistant", "content": "read_page"}, ""),
    ],
)
def test_calls_of_a_history_count_at_once(message: Mapping[str, Any], source: str) -> None:
    of_chat = taint()
    of_chat.watch(ClientsOnly(tuple), [dict(message)])
    assert of_chat.source == source
