"""The texts of a run's turns."""

import msgspec

from callgate.conversation.ports import ModelRequest
from callgate.recorder.recording import RunRecording
from callgate.recorder.turn_texts import KNOWN_CHARACTERS, LISTS_KNOWN, ToolsTexts, encode
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow


def tools(name: str, length: int = 10) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode({"type": "function", "name": name, "description": "x" * length}))]


def test_the_text_of_a_list_of_tools_is_made_once_where_the_list_comes_again() -> None:
    texts = ToolsTexts()
    offered, alike, long = tools("add"), tools("add"), tools("long", KNOWN_CHARACTERS)

    made = [texts.text_of(listed) for listed in (offered, offered, offered, alike, offered, long, long, long)]

    assert made == [encode(listed).decode() for listed in (*[offered] * 3, alike, offered, *[long] * 3)]
    assert made[1] is made[2] is made[4]
    assert made[3] is not made[2], "a list that came once"
    assert made[6] is not made[7], "too long to be remembered"


def test_the_text_of_a_list_is_forgotten_for_those_of_newer_lists() -> None:
    texts = ToolsTexts()
    lists = [tools(str(number)) for number in range(LISTS_KNOWN + 1)]

    twice = [texts.text_of(listed) for listed in lists for _ in range(2)]

    assert texts.text_of(lists[0]) is not twice[1]
    assert texts.text_of(lists[1]) is twice[3]


def test_what_a_retry_says_replaces_what_broke_off() -> None:
    recording = RunRecording(RunRow("run_1", 1.0), RecordPolicy(content_bytes=1000), str)
    question = msgspec.Raw(b'{"role":"user","content":"hi"}')
    history = [question]
    texts = recording.turn_texts(0, history)
    first = ModelRequest(history, tools("add"))
    second = ModelRequest([*history, {"role": "tool", "content": "5"}])

    said = []
    for request, text in ((first, "I loo"), (first, "I look"), (first, ""), (second, "five")):
        assert texts.begin(request) is request
        texts.end(text, "")
        said.append(recording.texts.get("turn.0.text"))

    assert said == ["I loo", "I look", None, None]
    assert recording.texts == {
        "tools": encode(first.tools).decode(),
        "turn.1.asked": '[{"role":"tool","content":"5"}]',
        "turn.1.text": "five",
    }


def test_the_bodies_of_all_answers_in_a_turn_are_kept_as_far_as_texts_are() -> None:
    recording = RunRecording(RunRow("run_1", 1.0), RecordPolicy(content_bytes=1000, wire="on"), str)
    history = [msgspec.Raw(b'{"role":"user","content":"hi"}')]
    texts = recording.turn_texts(1, history)
    request = ModelRequest(history)

    for body in (b"first", b"second"):
        sent = texts.begin(request)
        assert sent.record_body is not None
        sent.record_body()(body)
        texts.end("", "I thought")

    assert recording.texts == {
        "choice.1.turn.0.reasoning": "I thought",
        "choice.1.wire.0.0": "first",
        "choice.1.wire.0.1": "second",
    }
