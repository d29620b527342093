"""The outcome of an MCP result: text, images, and a note about everything else."""

from typing import Any

import pytest
from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Image, Outcome, Returned
from callgate.tools.kinds.mcp.results import for_user, outcome_fast, outcome_of
from callgate.tools.kinds.mcp.wire import RpcAnswer, RpcError, answer_from


def outcome_for(*content: dict[str, Any], **more: Any) -> Outcome:
    return outcome_of(answer_from({"content": list(content), **more}))


TEXT = {"type": "text", "text": "21 C"}


def test_text_is_text_in_its_order():
    assert outcome_for(
        TEXT, {"type": "text", "text": "and rain", "annotations": {"audience": ["user", "assistant"]}}
    ) == Returned("21 C\nand rain")


FOR_USER = {"type": "text", "text": "hi", "annotations": {"audience": ["user"]}}
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


@pytest.mark.parametrize("missing", [0, 7])
@pytest.mark.parametrize("is_error", [None, False, True])
@pytest.mark.parametrize(
    "result",
    [
        {"content": [TEXT]},
        {"content": [{"type": "text"}]},
        {"content": [TEXT], "structuredContent": {"degrees": 21}},
        {"content": []},
        {"content": [], "structuredContent": {"degrees": 21}},
        {"content": [TEXT, TEXT]},
        {"content": [TEXT, FOR_USER]},
        {"content": [FOR_USER]},
        {"content": [{**TEXT, "annotations": {}}]},
        {"content": [IMAGE]},
        {"content": [{"type": "text", "text": "x", "data": "AAAA"}]},
        {"content": [TEXT], "resultType": "input_required"},
        {"content": [TEXT], "resultType": "complete"},
        {"content": [TEXT], "contents": [{"uri": "file:///a", "text": "inside"}]},
    ],
    ids=str,
)
def test_an_outcome_that_is_made_fast_is_the_one_that_is_made_plainly(result, is_error, missing):
    answer = replace(answer_from({**result, "isError": is_error}), missing=missing)
    fast = outcome_fast(answer)
    assert fast is None or (fast, "") == (outcome_of(answer), for_user(answer))


def test_one_text_for_everybody_is_made_fast():
    assert outcome_fast(answer_from({"content": [TEXT], "structuredContent": {"degrees": 21}})) == Returned("21 C")
    assert outcome_fast(RpcAnswer(error=RpcError(-1, "no"))) is None


def test_structured_content_is_shown_where_there_is_no_text():
    assert outcome_for(structuredContent={"degrees": 21, "wind": None}) == Returned('{"degrees":21,"wind":null}')
    assert outcome_for(TEXT, structuredContent={"degrees": 21}) == Returned("21 C")
    assert outcome_for() == Returned("")


def test_images_are_images():
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    assert outcome_for(image, structuredContent={"a": 1}) == Returned("", images=(Image("AAAA", "image/png"),))
    blob = {"type": "resource", "resource": {"uri": "file:///a.png", "blob": "AAAA", "mimeType": "image/png"}}
    assert outcome_for(blob) == Returned("[file:///a.png]", images=(Image("AAAA", "image/png"),))


@pytest.mark.parametrize(
    "piece, words",
    [
        ({"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}, "[audio/wav, 3 bytes, not shown]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}, "[file:///a]\ninside"),
        (
            {"type": "resource", "resource": {"uri": "", "blob": "AA=="}},
            "[application/octet-stream, 1 bytes, not shown]",
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a.csv", "blob": "YSxiCjEsMg==", "mimeType": "text/csv"}},
            "[file:///a.csv]\n[text/csv, 7 bytes]\na,b\n1,2",
        ),
        (
            {
                "type": "resource",
                "resource": {"uri": "", "blob": "e30=", "mimeType": "application/geo+json; charset=utf-8"},
            },
            "[application/geo+json; charset=utf-8, 2 bytes]\n{}",
        ),
        (
            {"type": "resource", "resource": {"uri": "", "blob": "/w==", "mimeType": "text/csv"}},
            "[text/csv, 1 bytes, not shown]",
        ),
        (
            {"type": "resource", "resource": {"uri": "", "blob": "JVBERi0=", "mimeType": "application/pdf"}},
            "[application/pdf, 5 bytes, not shown]",
        ),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, "[a: file:///a]"),
        ({"type": "hologram", "beam": 7}, "[hologram that cannot be shown]"),
        ({"type": "image"}, "[image that cannot be shown]"),
        ({}, "[something that cannot be shown]"),
    ],
)
def test_everything_else_is_described(piece, words):
    assert outcome_for(piece) == Returned(words)


def test_a_failure_of_the_tool_is_a_failure():
    assert outcome_for(TEXT, isError=True) == Failed("21 C")
    assert outcome_for(isError=True) == Failed("The tool failed and did not say why.")


def test_an_error_of_the_protocol_is_a_failure():
    assert outcome_of(RpcAnswer(error=RpcError(-32602, "no such city"))) == Failed("no such city")
    assert "-32000" in outcome_of(RpcAnswer(error=RpcError(-32000, ""))).text


def test_a_tool_that_asks_a_person_is_refused():
    outcome = outcome_for(resultType="input_required")
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.REFUSED


def test_what_was_not_kept_is_counted():
    answer = answer_from({"content": [TEXT]})
    assert outcome_of(RpcAnswer(answer.result, missing=7)) == Returned("21 C", cut_bytes=7)
