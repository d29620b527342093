"""MCP servers in the config: as other programs write them, inline or in a file of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from callgate.config.load import Loaded, load
from callgate.config.mcp_file import as_yaml
from callgate.config.problems import ConfigError

MODELS = "model_list: [{model_name: demo, litellm_params: {model: demo/demo}}]\n"


@pytest.fixture
def write(tmp_path: Path):
    def written(config: str = "mcp_config: ./mcp.json\n", mcp: str | None = None) -> Path:
        if mcp is not None:
            (tmp_path / "mcp.json").write_text(mcp, encoding="utf-8")
        file = tmp_path / "config.yaml"
        file.write_text(MODELS + config, encoding="utf-8")
        return file

    return written


def refusals(file: Path, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(file, environ=environ or {})
    return [str(problem).removeprefix(f"{file.parent}/") for problem in refused.value.problems]


def loaded_file(file: Path, environ: dict[str, str] | None = None) -> Loaded:
    return load(file, environ=environ or {})


CLAUDE_DESKTOP = """{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me"]
    },
    "brave-search": {"command": "npx", "args": ["-y", "x"], "env": {"BRAVE_API_KEY": "${BRAVE_API_KEY}"}}
  }
}"""
CURSOR = (
    """{"mcpServers": {"remote": {"url": "http://localhost:3000/mcp", "headers": {"API_KEY": "${env:API_KEY}"}}}}"""
)
VS_CODE = """{
\t// Servers of this workspace.
\t"servers": {
\t\t"github": {"type": "http", "url": "https://api.example.com/mcp/", "gallery": true, "version": "1.0"},
\t\t"time": {
\t\t\t"type": "stdio",
\t\t\t"command": "uvx", /* fetched
\t\t\t   when needed */
\t\t\t"args": ["mcp-server-time", "--local-timezone=UTC"],
\t\t},
\t},
\t"inputs": [],
}"""
CLINE = """{"mcpServers": {"x": {"command": "x", "alwaysAllow": ["a"], "autoApprove": [], "disabled": true, "timeout": 60}}}"""


def test_a_file_of_claude_desktops_is_read(write):
    servers = loaded_file(write(mcp=CLAUDE_DESKTOP), {"BRAVE_API_KEY": "bk-1"}).config.mcp_servers
    assert servers["filesystem"].args == ("-y", "@modelcontextprotocol/server-filesystem", "/home/me")
    assert servers["brave-search"].env["BRAVE_API_KEY"].get_secret_value() == "bk-1"


def test_a_file_of_cursors_is_read_and_its_secrets_are_known(write):
    loaded = loaded_file(write(mcp=CURSOR), {"API_KEY": "ck-1"})
    assert loaded.config.mcp_servers["remote"].headers["API_KEY"].get_secret_value() == "ck-1"
    assert "ck-1" in loaded.secrets
    assert "ck-1" not in repr(loaded.config)


def test_a_file_of_vs_codes_is_read_with_its_comments_tabs_and_commas(write):
    servers = loaded_file(write(mcp=VS_CODE)).config.mcp_servers
    assert (servers["github"].type, servers["github"].url) == ("http", "https://api.example.com/mcp/")
    assert servers["time"].command == "uvx"


def test_an_editors_settings_keep_the_block_one_step_down(write):
    text = '{"editor.fontSize": 12, "mcp": {"servers": {"a": {"command": "a"}}}}'
    assert list(loaded_file(write(mcp=text)).config.mcp_servers) == ["a"]


def test_what_other_programs_keep_for_themselves_is_passed_over(write):
    server = loaded_file(write(mcp=CLINE)).config.mcp_servers["x"]
    assert (server.disabled, server.timeout) == (True, 60.0)


@pytest.mark.parametrize("block", ["mcpServers", "mcp_servers", "servers"])
def test_the_block_may_stand_in_the_config_itself(write, block: str):
    file = write(f"{block}:\n  time: {{command: uvx, args: [mcp-server-time, 5], env: {{PORT: 80, DEBUG: true}}}}\n")
    server = loaded_file(file).config.mcp_servers["time"]
    assert server.args == ("mcp-server-time", "5")
    assert {name: value.get_secret_value() for name, value in server.env.items()} == {"PORT": "80", "DEBUG": "true"}


def test_servers_of_both_places_come_together(write):
    file = write("mcp_config: ./mcp.json\nmcpServers:\n  time: {command: uvx}\n", CLINE)
    assert sorted(loaded_file(file).config.mcp_servers) == ["time", "x"]


def test_a_name_in_both_places_is_a_mistake(write):
    file = write("mcp_config: ./mcp.json\nmcpServers:\n  x: {command: uvx}\n", CLINE)
    assert refusals(file) == ["mcp.json:1:17: mcpServers.x: the config has a server of this name too"]


@pytest.mark.parametrize(
    "mcp, message",
    [
        (
            '{"mcpServers": {"a": {"comand": "x"}}}',
            "mcp.json:1:23: mcp_servers.a.comand: unknown key `comand`; did you mean `command`?",
        ),
        ('{"mcpServers": {"a": {}}}', "mcp.json:1:22: mcp_servers.a: needs either `command` or `url`"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://y"}}}', "needs either `command` or `url`"),
        ('{"mcpServers": {"a": {"type": "sse", "command": "x"}}}', "`type: sse` goes with `url`"),
        ('{"mcpServers": {"a": {"type": "stdio", "url": "http://y"}}}', "`type: stdio` goes with `command`"),
        (
            '{"mcpServers": {"a": {"type": "ws", "url": "http://y"}}}',
            "mcp.json:1:31: mcp_servers.a.type: should be `stdio`",
        ),
        ('{"mcpServers": {"a": {"command": "x", "headers": {"A": "b"}}}}', "`headers` go with `url`"),
        ('{"mcpServers": {"a": {"url": "http://y", "args": ["b"]}}}', "`args`, `env` and `cwd` go with `command`"),
        ('{"mcpServers": {"a": {"url": "ftp://y"}}}', "should be an address like"),
        (
            '{\n  "mcpServers": {\n    "a": {"command": "${input:key}"}}}',
            "mcp.json:3:22: mcpServers.a.command: `${input:key}` asks a person",
        ),
        ('{"mcpServers": {"a": {"command": "${NOPE}"}}}', "the environment variable NOPE is not set"),
        ('{"mcpServers": {"a": 5}}', "mcp.json:1:22: mcp_servers.a: should be a mapping"),
        ('{"mcpServers": 5}', "should be a mapping"),
        ("{", "not readable"),
        ("[]", "has no servers"),
        ("", "has no servers"),
        ('{"tools": {}}', "has no servers"),
    ],
)
def test_a_mistake_is_reported_at_its_place_in_the_file(write, mcp: str, message: str):
    [refusal] = refusals(write(mcp=mcp))
    assert message in refusal


def test_a_missing_file_is_reported_where_it_was_named(write):
    [refusal] = refusals(write())
    assert refusal.startswith("config.yaml:2:13: mcp_config: cannot read")


def test_relative_folders_start_at_the_config(write):
    file = write("mcp_servers:\n  a: {command: a, cwd: servers}\n  b: {command: b}\n")
    servers = loaded_file(file).config.mcp_servers
    assert (servers["a"].cwd, servers["b"].cwd) == (str(file.parent / "servers"), None)


@pytest.mark.parametrize(
    "value",
    [
        {"a": "// no comment /* at all */"},
        {"a": "tab\there", "b": [1, -2.5, True, None]},
        {"é": '\U0001f600 \\ " / 東'},
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_any_json_means_the_same_to_the_reader(value: Any, plain: bool):
    import yaml

    assert yaml.safe_load(as_yaml(json.dumps(value, ensure_ascii=plain, indent="\t"))) == value
