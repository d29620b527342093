"""`callgate serve` without any file, and what it says when it starts and when it ends."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml
from typer.testing import CliRunner

from callgate.cli.one_line import config_text, mcp_server
from callgate.commands import app
from callgate.config.load import load
from callgate.server.banner import banner
from tests.harness.clients import http_client, openai_client, whole
from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import READY, child, serving_command
from tests.scripted_upstream import Call, Hold, Pace, Reply, Upstream
from tests.tools.executor_kinds import RAW_MCP

pytestmark = pytest.mark.anyio

MCP = f"{sys.executable} -S {RAW_MCP}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("services: {}  # another program's\n")
    (tmp_path / "my_tools.py").write_text(
        "from callgate import tool\n\n\n@tool\ndef lookup(word: str) -> str:\n    return f'{word} is found'\n"
    )
    return tmp_path


async def test_a_model_a_file_of_tools_and_an_mcp_server_are_served_without_any_file(upstream, folder, installed):
    upstream.script(
        "gpt-5", [Reply(calls=[Call("lookup", {"word": "it"}), Call("raw_echo", {"text": "hi"})]), Reply("ok")]
    )
    flags = ["--model", "openai/gpt-5", "--base-url", upstream.url, "--tool", "my_tools.py", "--mcp", f"raw={MCP}"]
    command = [str(installed / "callgate"), "serve", "--port", "0", *flags]
    environment = {"OPENAI_API_KEY": "sk-of-the-environment", "PYTHONPATH": ""}
    async with child([], command=command, folder=folder, environment=environment) as started:
        url = (await started.line(READY)).group(0)
        async with openai_client(url) as client:
            answer = await whole(client, model="openai/gpt-5", messages=[{"role": "user", "content": "go"}])
    assert answer.choices[0].message.content == "ok"
    results = [message["content"] for message in upstream.requests[1].body["messages"] if message["role"] == "tool"]
    assert results == ["it is found", '{"text": "hi"}']
    assert upstream.requests[0].headers["authorization"] == "Bearer sk-of-the-environment"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--model", "openai/gpt-5"],
            "command line: --model: the environment variable OPENAI_API_KEY is not set: `export",
        ),
        (["--tool", "gone.py"], "--tool gone.py: there is no file gone.py"),
        (["--tool", "my-tools.py"], "call the file my_tools.py"),
        (["--tool", "my_tools.py:lokup"], "command line: --tool: my_tools has no lokup; is it lookup?"),
        (
            ["--model", "openai/gpt-5", "--tool", "my_tools.py:lokup"],
            "command line: --tool: my_tools has no lokup; is it lookup?",
        ),
        (["--tool", "plain.py"], "mark it, or name one function as `--tool plain:lookup`"),
        (
            ["--model", "opnai/gpt-5"],
            "command line: --model: no provider is called 'opnai'; did you mean `openai/gpt-5`?",
        ),
        (["--port", "99999"], "command line: --port: should be less than"),
        (["my.yaml"], "did you mean --config my.yaml?"),
        (["--mcp", "npx 'open"], "cannot be taken apart"),
        (["--mcp", "npx", "--config", "config.yaml"], "in place of a config file: leave out one or the other"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(flags, said, folder, monkeypatch):
    (folder / "my-tools.py").touch()
    (folder / "plain.py").write_text("def lookup(word: str) -> str:\n    return word\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = CliRunner().invoke(app, ["serve", "--port", "0", *flags])
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("said", "name", "entry"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem .", "filesystem", {"command": "npx"}),
        ("npx -y @scope/server-github@1.2.3", "github", {"command": "npx"}),
        ("uvx mcp-server-time --local-timezone UTC", "time", {"command": "uvx"}),
        ("docker run -i --rm mcp/fetch", "fetch", {"command": "docker"}),
        ("./notes-mcp", "notes", {"command": "./notes-mcp"}),
        ("https://mcp.example.com/v1", "example", {"url": "https://mcp.example.com/v1"}),
        ("mine=http://127.0.0.1:1/mcp?a=b", "mine", {"url": "http://127.0.0.1:1/mcp?a=b"}),
    ],
)
def test_an_mcp_server_gets_the_name_a_person_would_give_it(said, name, entry):
    found, made = mcp_server(said)
    assert (found, entry.items() <= made.items()) == (name, True)
    assert mcp_server(said, [name])[0] == f"{name}_2"


def test_tools_are_on_offer_to_every_model_that_is_named_and_a_model_without_tools_stays_as_it_is():
    [alone] = yaml.safe_load(config_text(["mine=anthropic/claude-sonnet-4-5"], [], []))["model_list"]
    assert alone == {
        "model_name": "mine",
        "litellm_params": {"model": "anthropic/claude-sonnet-4-5", "api_key": "os.environ/ANTHROPIC_API_KEY"},
    }
    [local] = yaml.safe_load(config_text(["ollama_chat/qwen3"], ["os.path"], []))["model_list"]
    assert (local["litellm_params"]["api_base"], local["tools"]) == ("http://127.0.0.1:11434", ["*"])


# What it says ---------------------------------------------------------------------------------------------------------


def test_the_banner_says_where_this_machine_finds_a_server_that_listens_everywhere():
    loaded = load(text="model_list: [{model_name: demo, litellm_params: {model: demo/demo}}]\nauth: off\n")
    listening = SimpleNamespace(getsockname=lambda: ("0.0.0.0", 8000))
    said = banner(loaded, cast("socket.socket", listening))
    assert "on http://0.0.0.0:8000  (OpenAI base_url: http://127.0.0.1:8000/v1)" in said
    assert "page    http://127.0.0.1:8000/" in said


async def test_the_banner_names_page_models_tools_with_their_states_and_keys(
    upstream: Upstream, tmp_path: Path
) -> None:
    servers = {"raw": {"command": sys.executable, "args": ["-S", str(RAW_MCP)]}, "gone": {"command": "/no/such"}}
    config = config_dict(upstream.url, tools=["add"], mcp_servers=servers)
    config["model_list"].append({"model_name": "plain", "litellm_params": {"model": "demo/demo"}})
    (tmp_path / "config.yaml").write_text(as_yaml(config))
    async with serving_command(tmp_path / "config.yaml") as started:
        await started.line(r"^          gone \(mcp\): (down|opening).*no program /no/such")
        assert f"  page    {started.url}/" in started.lines
        assert "  models  m, plain (no tools)" in started.lines
        assert "  keys    off: everyone is let in" in started.lines
        assert "  tools   add" in started.lines
        assert any(line.startswith("          raw (mcp): raw_") for line in started.lines)


async def test_a_first_start_without_any_config_says_what_to_do(tmp_path: Path) -> None:
    async with child(["serve", "--port", "0"], folder=tmp_path) as started:
        await started.line("^  go on   callgate init ")
        url = (await started.line(READY)).group(0)
        lines = started.log.split("  try it  ")[1].split("\n  go on")[0]
        assert url in lines
        process = await asyncio.create_subprocess_exec("bash", "-c", lines, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
    assert b"42" in said


async def test_the_first_ctrl_c_says_what_it_waits_for_and_the_second_ends_it_now(
    upstream: Upstream, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    upstream.script("m", lambda _: Reply(text="one two three four", pace=Pace(hold=Hold(gate, after=2))))
    (tmp_path / "config.yaml").write_text(as_yaml(config_dict(upstream.url)))
    async with serving_command(tmp_path / "config.yaml") as started, http_client(started.url) as client:
        asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}]}
        async with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
            lines = answer.aiter_lines()  # kept: an iterator that is dropped closes the connection
            await anext(lines)
            started.signal(signal.SIGINT)
            await started.line(r"stopping, waiting at most 30 s for 1 request under way; Ctrl-C again ends it now")
            started.signal(signal.SIGINT)
            await started.line(r"ending now, with 1 request under way cut off")
            assert await started.ended() == 128 + signal.SIGINT


async def test_a_port_that_is_taken_says_what_to_do(upstream: Upstream, tmp_path: Path) -> None:
    port = upstream.url.split(":")[2].split("/")[0]
    async with child(["serve", "--port", port], folder=tmp_path) as started:
        await started.line(rf"cannot listen on 127.0.0.1:{port}: Address already in use \(.*--port chooses another")
        assert await started.ended() == 1


# The command itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--version"], ["-V"]])
def test_the_version_is_printed(arguments):
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.output.split()[0]) == (0, "callgate")


@pytest.mark.parametrize("arguments", [["-h"], ["serve", "-h"], ["tools", "call", "-h"], ["keys", "-h"]])
def test_help_is_short_to_ask_for_everywhere(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_shells_can_complete_the_commands(shell):
    # Asked as a shell's own setup may ask; `--show-completion` looks which shell it was typed into.
    source = {**os.environ, "_CALLGATE_COMPLETE": f"source_{shell}"}
    async with child([], command=[sys.executable, "-m", "callgate"], environment=source) as started:
        assert await started.ended() == 0
        assert "_CALLGATE_COMPLETE" in started.log
    words = {"COMP_WORDS": "callgate to", "COMP_CWORD": "1", "_CALLGATE_COMPLETE": "complete_bash"}
    async with child([], command=[sys.executable, "-m", "callgate"], environment={**os.environ, **words}) as asked:
        assert await asked.ended() == 0
        assert "tools" in asked.log
