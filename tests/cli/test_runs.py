"""`callgate runs`, on the file that a server has left, and on one that runs."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from callgate.application import create_app
from callgate.commands import app
from callgate.recorder.commands.run_story import story
from callgate.records.row import RecordedRun, RunEvent, RunRow
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.process import ROOT
from tests.harness.server import serve
from tests.recordings import FOLDER, load
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = pytest.mark.anyio
run = CliRunner().invoke

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "planted question"}]}
ADD = Call("add", {"a": 2, "b": 3}, id="call_add")
TURNS = [Reply(calls=[ADD, Call("add", {"a": 2}, id="call_half")]), Reply(text="planted answer")]
OPTIONS: dict[str, Any] = {"tools": ["add"], "record": {"content": True}}


@pytest.fixture
async def recorded(upstream: Upstream, tmp_path: Path) -> tuple[Path, str]:
    """A config, and a run that is recorded in its folder."""
    options = {**OPTIONS, "data_dir": str(tmp_path / "data")}
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config_dict(upstream.url, **options)))
    async with serve(create_app(make_config(upstream.url, **options))) as url, http_client(url) as client:
        upstream.script("m", TURNS)
        answer = await client.post("/v1/chat/completions", json=QUESTION)
    return file, answer.headers["x-callgate-run"]


async def command(*arguments: str, lines: bytes = b"") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "callgate", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "app")},
    )  # fmt: skip
    async with asyncio.timeout(50):
        out, err = await process.communicate(lines)
    assert b"Traceback" not in err, err.decode()
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_run_is_printed_turn_by_turn_and_its_texts_only_on_request(recorded: tuple[Path, str]) -> None:
    file, id = recorded
    printed = run(app, ["runs", "show", id, "-c", str(file)]).output
    with_texts = run(app, ["runs", "show", id, "-c", str(file), "--content"]).output
    events = run(app, ["runs", "show", id, "-c", str(file), "--events"]).output

    for line in (
        id,
        "answered after",
        "2 turns, 2 calls (1 broken)",
        "→ call add (call_add): whole",
        "✗ call add (call_half): broken, schema_mismatch; not run",
        "✓ add returned after",
    ):
        assert line in printed
    assert printed.index("turn 1") < printed.index("add returned") < printed.index("turn 2")
    assert "planted" not in printed
    assert "said: planted answer" in with_texts
    assert 'arguments: {"a":2' in with_texts
    assert "turn_ended" in events


async def test_without_a_command_the_newest_are_listed_and_the_old_question_about_calls_is_answered(
    recorded: tuple[Path, str],
) -> None:
    file, id = recorded
    listed = run(app, ["runs", "-c", str(file)])
    calls = run(app, ["runs", "-c", str(file), "--state", "done"])
    nonsense = run(app, ["runs", "-c", str(file), "--state", "asleep"])

    assert (listed.exit_code, listed.output) == (0, run(app, ["runs", "list", "-c", str(file)]).output)
    assert id in listed.output
    assert "call_add" in calls.output
    assert "callgate calls --state" in calls.output
    assert nonsense.exit_code != 0


async def test_what_was_used_has_its_cost(recorded: tuple[Path, str]) -> None:
    file, _ = recorded
    assert "$0.00000 + 1 request without a price" in run(app, ["usage", "-c", str(file)]).output
    priced = file.read_text().replace("model_name: m", "model_name: m\n  model_info: {input_cost_per_token: 0.5}")
    file.write_text(priced)
    by_model = json.loads(run(app, ["usage", "--by", "model", "--json", "-c", str(file)]).output)
    shown = run(app, ["usage", "-c", str(file)]).output

    [used] = by_model
    assert used["tokens_in"] > 0
    assert used["cost"] == pytest.approx(used["tokens_in"] * 0.5)
    assert f"${used['cost']:.5f}" in shown


async def test_a_damaged_run_is_an_error_in_a_line(recorded: tuple[Path, str]) -> None:
    file, id = recorded
    database = sqlite3.connect(file.parent / "data" / "runs.sqlite3")
    with database:
        database.execute("UPDATE runs SET tools = '['")
    database.close()
    ended = run(app, ["runs", "show", id, "--config", str(file)])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "is damaged, or was written by another version of Callgate" in ended.stderr
    listed = run(app, ["runs", "list", "--config", str(file)])
    assert (listed.exit_code, listed.stdout) == (0, "")


async def test_a_run_is_exported_in_three_ways(recorded: tuple[Path, str]) -> None:
    file, id = recorded
    whole = json.loads(run(app, ["runs", "export", id, "-c", str(file)]).output)
    line = run(app, ["runs", "export", id, "-c", str(file), "--as", "curl"]).output
    recording = json.loads(run(app, ["runs", "export", id, "-c", str(file), "--as", "recording"]).output)

    assert whole["content"]["turn.1.text"] == "planted answer"
    assert "$CALLGATE_KEY" in line
    assert "planted question" in line
    assert recording["expect"]["results"] == {"call_add": "5", "call_half": {"flaw": "schema_mismatch"}}


async def test_a_run_of_which_nothing_was_kept_is_not_exported_to_be_played(upstream: Upstream, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tools": ["add"], "data_dir": str(tmp_path / "data")}
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config_dict(upstream.url, **options)))
    async with serve(create_app(make_config(upstream.url, **options))) as url, http_client(url) as client:
        upstream.script("m", TURNS)
        id = (await client.post("/v1/chat/completions", json=QUESTION)).headers["x-callgate-run"]
    result = run(app, ["runs", "export", id, "-c", str(file), "--as", "recording"])

    assert result.exit_code == 1
    assert "record.content" in result.output


async def test_an_exported_recording_is_judged_again_without_a_server(
    recorded: tuple[Path, str], tmp_path: Path
) -> None:
    file, id = recorded
    exported = json.loads(run(app, ["runs", "export", id, "-c", str(file), "--as", "recording"]).output)
    (tmp_path / "it.json").write_text(json.dumps(exported))
    same = run(app, ["runs", "replay", "--offline", str(tmp_path / "it.json")])
    exported["tools"][0]["function"]["parameters"]["required"] = ["a"]
    (tmp_path / "it.json").write_text(json.dumps(exported))
    other = run(app, ["runs", "replay", "--offline", str(tmp_path / "it.json")])

    assert (same.exit_code, same.output) == (0, "2 calls, judged as they were\n")
    assert (other.exit_code, other.output) == (1, "turn 1: was add schema_mismatch, is add ready\n")


@pytest.mark.parametrize("name", ["two-calls-interleaved", "truncated-call-then-whole", "half-truncated-turn"])
async def test_the_recordings_of_the_tests_get_the_recorded_verdicts(name: str, tmp_path: Path) -> None:
    recording = load(FOLDER / f"{name}.json")
    config = make_config("http://127.0.0.1:9", tools=recording.house_tools)
    async with serve(create_app(config)) as url, http_client(url) as client:
        listed = (await client.get("/v1/tools")).json()["data"]
    tools = [{"function": {"name": each["name"], "parameters": each["parameters"]}} for each in listed]
    printed = json.loads((FOLDER / f"{name}.json").read_text()) | {"tools": tools}
    (tmp_path / "it.json").write_text(json.dumps(printed))
    result = run(app, ["runs", "replay", "--offline", str(tmp_path / "it.json")])

    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"replies": [{}], "expect": {}, "tools": [], "request": {}}', '{"replies": [], "expect": {}}'],
)
async def test_a_file_that_is_no_recording_is_an_error_in_a_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "it.json").write_text(text)
    result = run(app, ["runs", "replay", "--offline", str(tmp_path / "it.json")])

    assert result.exit_code == 2
    assert "it.json" in result.output
    assert "Traceback" not in result.output


async def test_a_run_is_asked_again_on_a_server(upstream: Upstream) -> None:
    async with serve(create_app(make_config(upstream.url, **OPTIONS))) as url, http_client(url) as client:
        upstream.script("m", TURNS)
        id = (await client.post("/v1/chat/completions", json=QUESTION)).headers["x-callgate-run"]
        upstream.script("m", [Reply(text="another answer")])
        code, out, err = await command("runs", "replay", id, "--from-turn", "2", "--url", url)
        upstream.script("m", [Reply(calls=[Call("add", {"a": 7, "b": 7})])])
        stopped, _, why = await command("runs", "replay", id, "--url", url)
        missing, _, reason = await command("runs", "replay", "run_none", "--url", url)

    assert (code, out) == (0, "another answer\n")
    assert f"asks {id} again" in err
    assert stopped == 1
    assert "call not in the recording" in why
    assert missing == 1
    assert "No run `run_none`" in reason


async def test_runs_are_followed_on_a_server(upstream: Upstream) -> None:
    async with serve(create_app(make_config(upstream.url, **OPTIONS))) as url, http_client(url) as client:
        upstream.script("m", TURNS)
        first = (await client.post("/v1/chat/completions", json=QUESTION)).headers["x-callgate-run"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "callgate", "runs", "list", "-f", "--url", url,
            stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "app"), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(40):
            assert first in (await process.stdout.readline()).decode()
            upstream.script("m", TURNS)
            second = (await client.post("/v1/chat/completions", json=QUESTION)).headers["x-callgate-run"]
            assert second in (await process.stdout.readline()).decode()
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0


@pytest.mark.parametrize("asked", [["runs", "list"], ["calls"], ["usage"], ["keys", "list"]])
async def test_what_reads_files_needs_no_variable_and_no_tool(asked: list[str], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    model = {"model": "openai/gpt", "api_key": "os.environ/NOT_SET_ANYWHERE"}
    unset: dict[str, Any] = {
        "keys": [{"name": "alice", "hash": "${NOT_SET_ANYWHERE}"}],
        "store": {"redis_url": "os.environ/NOT_SET_ANYWHERE"},
        "approvals": {"webhook": {"url": "https://chat.example.com", "secret": "os.environ/NOT_SET_ANYWHERE"}},
        "tools": [{"kind": "python", "module": "no_such_module_anywhere"}],
    }
    config = {"model_list": [{"model_name": "gpt", "litellm_params": model}], "data_dir": "data", **unset}
    file.write_text(yaml.safe_dump(config))
    result = run(app, [*asked, "-c", str(file)])

    assert result.exit_code == 0, result.output
    assert ("alice" in result.output) == (asked[0] == "keys")
    assert run(app, ["check", "-c", str(file)]).exit_code == 2


def test_a_name_that_a_model_made_up_makes_no_line_of_its_own() -> None:
    call = {
        "id": "c\n  ✓ id",
        "name": "x\n  ✓ name",
        "verdict": "broken",
        "flaw": "unknown_tool",
        "problem": {"got": "y\n  ✓ got"},
    }
    facts = {"calls": [call], "seconds": 1.0, "finish_reasons": ["stop\n  ✓ reason"], "attempts": 1, "deployment": "d"}
    events = [RunEvent(0.0, "turn_started", turn=0), RunEvent(1.0, "turn_ended", turn=0, facts=facts)]
    lines = list(story(RecordedRun(RunRow("run_1", 1.0, model="m\n  ✓ model"), events), [], content=False))
    assert not any("\n  ✓" in line for line in lines)
    assert sum(line.count("\\u000a  ✓") for line in lines) == 5


async def test_a_running_server_is_asked_where_nothing_is_kept_in_a_folder(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config_dict(upstream.url, **OPTIONS)))
    upstream.script("m", TURNS)
    async with serve(create_app(make_config(upstream.url, **OPTIONS))) as url, http_client(url) as client:
        answer = await client.post("/v1/chat/completions", json=QUESTION)
        id = answer.headers["x-callgate-run"]
        asking = ("-c", str(file), "--url", url)
        listed = await command("runs", "list", *asking)
        story = await command("runs", "show", id, *asking, "--content")
        events = await command("runs", "show", id, *asking, "--events")
        used = await command("usage", "--by", "model", "--json", *asking)
        unknown = await command("runs", "show", "run_nowhere", *asking)
    assert listed[0] == 0
    assert id in listed[1]
    assert "→ call add (call_add): whole" in story[1]
    assert "said: planted answer" in story[1]
    assert "turn_ended" in events[1]
    [row] = json.loads(used[1])
    assert (row["name"], row["requests"]) == ("m", 1)
    assert unknown[0] == 1


@pytest.mark.parametrize("asked", [["runs", "list"], ["runs", "show", "run_1"], ["usage"]])
async def test_without_a_folder_it_is_said_which_server_is_asked(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"model_list": [{"model_name": "m", "litellm_params": {"model": "demo/demo"}}]}))
    monkeypatch.setenv("CALLGATE_PORT", "1")
    code, _, told = await command(*asked, "-c", str(file))
    assert code == 1
    assert "the config has no `data_dir`: asking the server at http://127.0.0.1:1" in told
