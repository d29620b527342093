"""What docs/mcp.md shows is read by Callgate as it is pasted."""

import re
from pathlib import Path

import yaml

from callgate.config.load import load
from callgate.config.schema.whole import Config
from callgate.tools.kinds.mcp.process import INHERITED
from callgate.tools.kinds.mcp.settings import McpServer
from callgate.tools.settings import ToolSection

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
VARIABLES = {"TICKETS_TOKEN": "tt", "OPENAI_API_KEY": "sk", "GITHUB_TOKEN": "gh"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_servers_that_are_shown_are_read(tmp_path):
    inline, named, *_ = blocks("yaml")
    file, *_ = blocks("json")
    (tmp_path / "mcp.json").write_text(file, encoding="utf-8")
    (tmp_path / "config.yaml").write_text(f"{inline}\n{named}", encoding="utf-8")
    config = load(tmp_path / "config.yaml", environ=VARIABLES).config
    assert sorted(config.mcp_servers) == ["files", "github", "tickets", "time"]
    assert config.mcp_servers["time"].args[-1] == "--local-timezone=UTC"
    assert isinstance(config, Config)
    assert yaml.safe_load(named) == {"mcp_config": config.mcp_config}


def test_every_setting_of_a_server_is_named():
    table = PAGE.split("## What an entry may say")[1].split("## Names")[0]
    settings = McpServer.model_fields.keys() | ToolSection.model_fields.keys()
    assert [name for name in settings if f"`{name}`" not in table] == []


def test_every_variable_that_a_program_sees_is_named():
    assert [name for name in INHERITED if f"`{name}`" not in PAGE] == []
