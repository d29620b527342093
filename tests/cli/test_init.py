"""`callgate init`: what it writes from flags, from questions, and from what it finds, is a config that `check` passes."""

import asyncio
import json
import os
import pty
import re
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner, Result

from callgate.access.keys import hash_key
from callgate.cli import found, providers
from callgate.commands import app
from callgate.config.load import load
from tests.harness.process import START_PATIENCE
from tests.scripted_upstream import Upstream

pytestmark = pytest.mark.anyio

CLAUDE = {
    "mcpServers": {
        "files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]},
        "github": {"command": "npx", "args": ["-y", "x"], "env": {"GITHUB_TOKEN": "ghp_secret"}, "autoApprove": ["a"]},
    }
}
VS_CODE = """{
  // what VS Code writes
  "inputs": [{"id": "api-key", "type": "promptString"}],
  "servers": {
    "remote": {"type": "http", "url": "https://mcp.example.com/mcp"},
    "asks": {"type": "stdio", "command": "uvx", "args": ["x"], "env": {"KEY": "${input:api-key}"}},
    "here": {"command": "mcp-here", "args": ["${workspaceFolder}/data"],},
    "odd": {"args": []},
  }
}"""


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, a home without anything, no keys, and no server of models on this machine."""
    folder = tmp_path / "new"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for each in providers.PROVIDERS.values():
        monkeypatch.delenv(each.key or "NONE", raising=False)
    ports = {name: msgspec.structs.replace(it, port=it.port and 1) for name, it in providers.PROVIDERS.items()}
    monkeypatch.setattr(found, "PROVIDERS", ports)
    return folder


def init(*flags: str, answers: str = "") -> Result:
    return CliRunner().invoke(app, ["init", *(flags if answers else ("--no-ask", *flags))], input=answers)


def check() -> Result:
    return CliRunner().invoke(app, ["check"])


def written_config(name: str = "config.yaml") -> Any:
    return yaml.safe_load(Path(name).read_text())


@pytest.mark.parametrize("name", providers.PROVIDERS)
def test_every_provider_makes_a_config_that_check_passes(name, monkeypatch):
    for each in providers.PROVIDERS.values():
        monkeypatch.setenv(each.key or "NONE", "sk-1")
    result = init("--provider", name)
    assert result.exit_code == 0, result.output
    assert "next: callgate serve" in result.output
    checked = check()
    assert checked.exit_code == 0, checked.output
    [entry] = written_config()["model_list"]
    assert entry["tools"] == ["*"]
    assert "sk-1" not in Path("config.yaml").read_text()


def test_nothing_found_is_the_demo_and_a_config_is_not_written_over(monkeypatch):
    assert "the demo model stands in" in init().output
    assert check().exit_code == 0
    again = init()
    assert again.exit_code == 2
    assert "config.yaml is there already: --force writes over it" in again.output
    assert init("--force").exit_code == 0


def test_a_key_that_is_not_set_is_the_next_thing_to_do():
    result = init("--provider", "anthropic")
    assert result.exit_code == 0
    assert "next: export ANTHROPIC_API_KEY=..." in result.output


async def test_local_servers_are_found_with_their_models(upstream: Upstream, monkeypatch):
    upstream.script("qwen3", [])
    upstream.script("nomic-embed-text", [])
    ports = {name: msgspec.structs.replace(it, port=1) for name, it in providers.PROVIDERS.items() if it.port}
    ports["ollama"] = msgspec.structs.replace(ports["ollama"], port=upstream.port)
    monkeypatch.setattr(found, "PROVIDERS", ports)
    result = await asyncio.to_thread(init, "--yes")
    assert result.exit_code == 0, result.output
    entries = {entry["model_name"]: entry for entry in written_config()["model_list"]}
    address = f"http://127.0.0.1:{upstream.port}"
    assert entries["qwen3"]["litellm_params"] == {"model": "ollama_chat/qwen3", "api_base": address}
    assert "nomic-embed-text" not in entries
    assert check().exit_code == 0


async def test_any_address_with_openai_s_api_is_asked_for_its_models(upstream: Upstream):
    upstream.script("mine", [])
    result = await asyncio.to_thread(init, "--base-url", upstream.url)
    assert result.exit_code == 0, result.output
    assert "mine" in [entry["model_name"] for entry in written_config()["model_list"]]
    nobody = await asyncio.to_thread(init, "--force", "--base-url", "http://127.0.0.1:1/v1")
    assert (nobody.exit_code, "name one with --model openai/NAME" in nobody.output) == (2, True)


def test_files_of_other_programs_are_taken_over_and_what_cannot_be_is_a_comment_with_the_reason(tmp_path):
    desktop = tmp_path / "home" / ".config" / "Claude" / "claude_desktop_config.json"
    desktop.parent.mkdir(parents=True)
    desktop.write_text(json.dumps(CLAUDE))
    Path(".vscode").mkdir()
    Path(".vscode/mcp.json").write_text(VS_CODE)
    Path(".cursor").mkdir()
    Path(".cursor/mcp.json").write_text(json.dumps({"mcpServers": {"files": {"url": "http://127.0.0.1:1/mcp"}}}))
    result = init("--yes")
    assert result.exit_code == 0, result.output
    servers = written_config()["mcp_servers"]
    assert set(servers) == {"files", "github", "files_2", "remote", "here"}
    assert "autoApprove" not in servers["github"]
    assert servers["here"]["args"] == [f"{Path.cwd()}/data"]
    text = Path("config.yaml").read_text()
    assert "# left out: the environment variable API_KEY is not set" in text
    assert "#     KEY: ${API_KEY}" in text
    assert "# left out: needs either `command` or `url`" in text
    assert stat.S_IMODE(Path("config.yaml").stat().st_mode) == 0o600
    checked = check()
    assert checked.exit_code == 0, checked.output
    assert "5 sources of tools" in checked.output


def test_a_file_that_is_named_is_taken_and_one_that_cannot_be_read_is_an_error(tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(CLAUDE))
    assert init("--mcp-file", str(file), "--mcp", "uvx mcp-server-time").exit_code == 0
    assert set(written_config()["mcp_servers"]) == {"time", "files", "github"}
    result = init("--force", "--mcp-file", str(tmp_path / "gone.json"))
    assert (result.exit_code, "gone.json cannot be read" in result.output) == (2, True)


def test_a_host_that_others_reach_gets_a_key_that_is_shown_once():
    result = init("--host", "0.0.0.0", "--port", "9000", "--tool", "mine.py")
    assert (result.exit_code, "there is no file mine.py" in result.output) == (2, True)
    Path("mine.py").write_text("from callgate import tool\n\n\n@tool\ndef lookup() -> str:\n    return 'it'\n")
    result = init("--host", "0.0.0.0", "--port", "9000", "--tool", "mine.py")
    secret = re.search(r"key \(shown this once\): (cg-\S+)", result.output)
    assert secret
    config = load("config.yaml").config
    assert (config.server.port, config.keys[0].name, config.keys[0].hash) == (9000, "first", hash_key(secret[1]))
    assert check().exit_code == 0


def test_a_key_that_is_typed_is_stored_beside_the_config():
    answers = ["openai, nonsense", "openai", "gpt-5, gpt-5-mini", "sk-typed-in", "127.0.0.1", "y"]
    result = init("--ask", answers="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    assert "Not known: nonsense" in result.output
    assert [entry["model_name"] for entry in written_config()["model_list"]] == ["gpt-5", "gpt-5-mini"]
    assert Path("secrets/openai_api_key").read_text() == "sk-typed-in\n"
    assert stat.S_IMODE(Path("secrets/openai_api_key").stat().st_mode) == 0o600
    assert Path("secrets/.gitignore").read_text() == "*\n"
    assert "sk-typed-in" not in Path("config.yaml").read_text()
    assert load("config.yaml").config.model_list[0].litellm_params.reveal()["api_key"] == "sk-typed-in"
    assert check().exit_code == 0


def test_an_address_the_demo_and_providers_by_their_other_names_may_be_typed():
    result = init("--ask", answers="opnai\nclaude http://127.0.0.1:1/v1\nmine\nclaude-x\n\n\n\n")
    assert result.exit_code == 0, result.output
    assert "Not known: opnai; did you mean `openai`?" in result.output
    assert [each["litellm_params"] for each in written_config()["model_list"]] == [
        {"model": "openai/mine", "api_base": "http://127.0.0.1:1/v1"},
        {"model": "anthropic/claude-x", "api_key": "os.environ/ANTHROPIC_API_KEY"},
    ]
    assert init("--ask", "--force", answers="demo\n\n\n").exit_code == 0
    assert [each["model_name"] for each in written_config()["model_list"]] == ["demo"]
    assert check().exit_code == 0


@pytest.mark.slow
async def test_a_person_at_a_terminal_is_asked_and_the_installed_command_serves_what_came_of_it(installed, tmp_path):
    ours, theirs = pty.openpty()
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "OPENROUTER_API_KEY": "sk-or-1"}
    process = await asyncio.create_subprocess_exec(
        str(installed / "callgate"), "init", stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    os.write(ours, b"openrouter\n\n\n\n")
    async with asyncio.timeout(START_PATIENCE):
        assert await process.wait() == 0
    said = os.read(ours, 65536).decode()
    os.close(ours)
    assert "OpenRouter: which models" in said
    assert "next: callgate serve" in said
    assert written_config()["model_list"][0]["litellm_params"]["api_key"] == "os.environ/OPENROUTER_API_KEY"


MARKED = 'from callgate import tool\n\n\n@tool(safety="read_only")\ndef lookup(word: str) -> str:\n    """Look a word up."""\n    return word\n'


def test_what_is_written_keeps_what_it_did() -> None:
    init("--provider", "demo")
    assert yaml.safe_load(Path("config.yaml").read_text())["data_dir"] == "./data"
    for command in (["runs"], ["usage"], ["calls"]):
        assert CliRunner().invoke(app, command).exit_code == 0


def test_tools_that_would_not_be_found_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other_tools.py").write_text(MARKED)
    refused = init("--provider", "demo", "--tool", "../elsewhere/other_tools.py")
    assert refused.exit_code != 0
    assert "modules are found beside the config" in refused.output
    assert "--output ../elsewhere/config.yaml" in refused.output
    assert not Path("config.yaml").exists()


def test_nothing_is_written_that_check_would_refuse() -> None:
    Path("config.yaml").write_text("# mine\n")
    refused = init("--model", "m=opnai/gpt", "--force")
    assert refused.exit_code == 1
    assert "config.yaml was not written" in refused.output
    assert Path("config.yaml").read_text() == "# mine\n"
    assert [path.name for path in Path().iterdir()] == ["config.yaml"]


def test_tools_of_the_usual_name_are_noticed() -> None:
    Path("my_tools.py").write_text(MARKED)
    noticed = init("--provider", "demo")
    assert "my_tools.py is here" in noticed.output
    assert yaml.safe_load(Path("config.yaml").read_text())["tools"] == [{"kind": "python", "module": "my_tools"}]
    assert check().exit_code == 0
    sys.modules.pop("my_tools", None)


def test_a_file_of_that_name_without_tools_is_left_alone() -> None:
    Path("my_tools.py").write_text("import no_such_package\n")
    left = init("--provider", "demo")
    assert "my_tools.py is not taken" in left.output
    assert check().exit_code == 0
