"""The runner finds what differs: cases of our own, each passing or failing in one way."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.peersuite.__main__ import main

TOOL = {"function": {"name": "book_table", "parameters": {"type": "object", "properties": {"seats": {}}}}}
BLOCK = '<tool_call>{"name": "book_table", "arguments": {"seats": 4}}</tool_call>'
CALL = {"name": "book_table", "arguments": {"seats": 4}}


def text(written: str, *calls: Mapping[str, Any], content: str = "") -> dict[str, Any]:
    return {"kind": "text", "text": written, "expect": {"calls": list(calls), "content": content}}


def native(*deltas: Mapping[str, Any], calls: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {"kind": "native", "deltas": list(deltas), "expect": {"calls": calls, "content": ""}}


def counted(root: Path, capsys: pytest.CaptureFixture[str], **cases: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code of a run over these cases, and the lines it wrote."""
    folder = root / "mine" / "own_style"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "formats.json").write_text(json.dumps({"own_style": {"model": "a-model-of-ours", "callgate": "hermes"}}))
    for name, case in cases.items():
        whole = {"id": f"mine/own_style/{name}", "project": "mine", "format": "own_style", "tools": [TOOL], **case}
        (folder / f"{name}.json").write_text(json.dumps(whole))
    code = main([str(root), "-v"])
    return code, capsys.readouterr().out.splitlines()


def test_cases_that_come_out_as_expected_pass_whole_streamed_and_native(tmp_path, capsys):
    function = {"name": "book_table", "arguments": '{"seats": 4}'}
    code, lines = counted(
        tmp_path,
        capsys,
        call=text(f"Two tables.{BLOCK}", CALL, content="Two tables."),
        talk=text("No table is free.", content="No table is free."),
        stream=native({"tool_calls": [{"index": 0, "id": "c1", "function": function}]}, calls=[CALL]),
    )
    assert lines[-1] == "3 passed, 0 failed"
    assert code == 0


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (text(BLOCK, {"name": "book_table", "arguments": {"seats": 5}}), "wrong"),
        (text(BLOCK), "wrong"),
        (text("Nothing.", CALL, content="Nothing."), "missed"),
        (text("Ask me </tool_calls>.", content="Ask me."), "leak"),
        (text("Hello there.", content="Hello."), "taste"),
        (text(BLOCK[:-30], {"name": "book_table", "arguments_text": '{"sea'}), "half"),
    ],
)
def test_a_difference_is_counted_and_named_by_its_class(tmp_path, capsys, case, kind):
    code, lines = counted(tmp_path, capsys, odd=case)
    assert lines[-1] == "0 passed, 1 failed"
    assert lines[0].split()[:2] == [kind, "mine/own_style/odd"]
    assert code == 1


def test_a_judged_difference_keeps_its_class_and_does_not_pass(tmp_path, capsys):
    judged = {"mine/own_style/odd": {"class": "design", "note": "we greet otherwise"}}
    (tmp_path / "judgements.json").write_text(json.dumps(judged))
    code, lines = counted(tmp_path, capsys, odd=text("Hello there.", content="Hello."))
    assert lines[0].startswith("design")
    assert lines[-1] == "0 passed, 1 failed"
    assert code == 1
