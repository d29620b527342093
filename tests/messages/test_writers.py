"""Whatever happens in a chat, the events of a message put together are the whole message, and are in order on the way."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.calls.outcome import Failed, Returned
from callgate.calls.states import BrokenCall, Flaw, ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.events import (
    CallEnded,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    Ending,
    EndingKind,
    ExtraField,
    Finished,
    ModelOutput,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
)
from callgate.conversation.messages_api import BLOCKS
from callgate.conversation.usage import Usage
from callgate.messages.writers import MessageHead, MessageStreamWriter, MessageWriter
from tests.chaos.scale import examples
from tests.harness.messages import events_in, put_together, text_of

CALL = ReadyCall("call_1", "add", {"a": 1}, '{"a": 1}')
BROKEN = BrokenCall("call_2", "add", Flaw.TRUNCATED, '{"a"')
words = st.sampled_from(["So", " ", "\n", "ä 🌤", 'a "quote"', ""])
said = st.one_of(
    words.map(TextDelta),
    words.map(ReasoningDelta),
    words.map(lambda text: ThinkingBlock({"type": "thinking", "thinking": text})),
    st.just(ThinkingBlock({"type": "thinking", "thinking": "", "signature": "c2ln"})),
    st.just(ThinkingBlock({"type": "redacted_thinking", "data": "AAAA"})),
    st.just(ExtraField(BLOCKS, [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}])),
    st.just(ExtraField(BLOCKS, [{"type": "text", "text": "said already"}])),
    st.just(ExtraField("refusal", "No.")),
    st.just(Finished("stop_sequence")),
)
happening = st.one_of(
    st.builds(ModelOutput, st.integers(0, 2), st.lists(said, max_size=4)),
    st.just(CallStarted(0, CALL)),
    st.just(CallProgress(0, CALL, "half")),
    st.sampled_from([CallEnded(0, CALL, Returned("1"), 0.1), CallEnded(0, CALL, Failed("no"), 0.1)]),
)
endings = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])


def both(head: MessageHead, events: Sequence[ChatEvent]) -> tuple[dict[str, Any], dict[str, Any]]:
    stream, whole = MessageStreamWriter(head, None), MessageWriter(head, None)
    written = stream.heartbeat()
    for event in events:
        written += stream.write(event)
        whole.write(event)
    return put_together(written.decode()), whole.body()


@settings(max_examples=examples(150), deadline=None)
@given(
    events=st.lists(happening, max_size=8),
    handed=st.sampled_from([(), (CALL,), (BROKEN,), (BROKEN, CALL)]),
    reason=endings,
    thinking=st.booleans(),
    calls=st.booleans(),
)
def test_a_stream_put_together_is_the_whole_message(
    events: list[ChatEvent], handed: tuple[Any, ...], reason: Any, thinking: bool, calls: bool
) -> None:
    head = MessageHead("run_1", "req_1", "m", shows_thinking=thinking, shows_calls=calls)
    back = [CallsHandedBack(handed)] if handed else []
    ended = ChatEnded(Ending(EndingKind.ANSWERED, reason), Usage({"prompt_tokens": 9, "completion_tokens": 4}))
    streamed, whole = both(head, [*events, *back, ended])
    as_sent = [{**block, "input": {"a": 1}} if block.get("input") else block for block in whole["content"]]
    assert streamed == {**whole, "content": as_sent}
    kinds = [block["type"] for block in streamed["content"]]
    assert kinds.count("tool_use") == (CALL in handed)
    assert thinking or not {"thinking", "redacted_thinking"} & set(kinds)
    assert calls or not {"mcp_tool_use", "mcp_tool_result"} & set(kinds)
    assert (whole["stop_reason"] == "tool_use") == (reason == "tool_calls" and CALL in handed)
    assert all(block["text"] for block in streamed["content"] if block["type"] == "text")


def test_text_of_several_turns_is_one_text_with_a_blank_line_between_its_parts() -> None:
    head = MessageHead("run_1", "req_1", "m", shows_calls=True)
    events: list[ChatEvent] = [
        ModelOutput(0, [TextDelta("Let me see.\n")]),
        CallStarted(0, CALL),
        CallEnded(0, CALL, Returned("1"), 0.1),
        ModelOutput(1, [TextDelta("\n"), TextDelta("One.")]),
        ChatEnded(Ending(EndingKind.ANSWERED, "stop"), None),
    ]
    streamed, whole = both(head, events)
    assert text_of(streamed) == text_of(whole) == "Let me see.\n\n\nOne."


def test_an_error_is_an_event_with_the_id_of_its_request() -> None:
    writer = MessageStreamWriter(MessageHead("run_1", "req_1", "m"), None)
    written = writer.write(ModelOutput(0, [TextDelta("So")])) + writer.error(ChatError(502, "It broke.", code="x"))
    *_, last = events_in(written.decode())
    error = {"type": "api_error", "message": "It broke.", "details": {"error_code": "x"}}
    assert last == {"type": "error", "error": error, "request_id": "req_1"}
