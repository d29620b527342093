"""`config.yaml` is the reference of every setting: it runs as it stands, and shows all there is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import jsonschema_rs
import pytest
import yaml
from pydantic import BaseModel

from callgate.config.load import DEFAULT_FILE, load
from callgate.config.schema.editors import json_schema, json_schema_text
from callgate.config.schema.whole import Config
from callgate.guardrails.settings import HookSection
from callgate.models.settings import LitellmParams, TextFormat
from callgate.text_calls.reader import FORMATS
from callgate.tools.settings import ToolSection

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "config.yaml"
VARIABLES = {
    "APPROVALS_SECRET": "x" * 32,
    "OPENAI_API_KEY": "sk-openai",
    "OTLP_AUTHORIZATION": "Bearer otlp-1",
    "ANTHROPIC_API_KEY": "sk-ant",
    "WEATHER_TOKEN": "wt-123456",
    "SEARCH_API_KEY": "search-123456",
    "TICKETS_TOKEN": "tt-1",
    "PETSTORE_KEY": "pk-1",
    "NOTES_CLIENT_SECRET": "ns-1",
    "BUILD_CLIENT_KEY": "-----BEGIN PRIVATE KEY-----",
    "GUARDRAIL_KEY": "gk-1",
}

EXAMPLE_LINE = re.compile(r"^( *)#: ", re.MULTILINE)


def with_examples() -> str:
    return EXAMPLE_LINE.sub(r"\1", REFERENCE.read_text())


def sections(kind: Any = Config) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from sections(field.annotation)
    elif get_origin(kind) is not None:
        for part in get_args(kind):
            yield from sections(part)


def shown(kind: type[BaseModel], tree: Any) -> Iterator[dict[str, Any]]:
    """The blocks of the file that an instance of a section was read from, found by their keys."""
    names = {field.alias or name for name, field in kind.model_fields.items()}
    required = {field.alias or name for name, field in kind.model_fields.items() if field.is_required()}
    if isinstance(tree, dict):
        if tree.keys() & names and required <= tree.keys() and "properties" not in tree:
            yield tree
        for value in tree.values():
            yield from shown(kind, value)
    elif isinstance(tree, list):
        for value in tree:
            yield from shown(kind, value)


def test_as_it_stands_it_needs_no_variable_and_means_the_same_as_no_file_but_keeps_what_it_did():
    shipped = load(REFERENCE, environ={}).config
    assert shipped.data_dir == str(ROOT / "data")
    assert shipped.model_copy(update={"data_dir": None}) == load(DEFAULT_FILE, environ={}).config


def test_with_every_example_in_use_it_is_valid(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(with_examples())
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"memory": {"command": "memory-server"}}}')

    config = load(file, environ=VARIABLES).config

    assert [entry.model_name for entry in config.model_list] == ["demo", "gpt", "local", "anthropic/*", "large"]
    names = ["lookup", "weather", "open_ticket", "petstore", "git_log", "web_search", "web_fetch"]
    assert [tool.name for tool in config.tools] == [None, *names]
    assert [key.name for key in config.keys] == ["alice"]
    assert sorted(config.mcp_servers) == ["build", "crm", "files", "memory", "notes", "tickets"]


BASES = (ToolSection, HookSection)
ALL_SECTIONS: list[type[BaseModel]] = sorted({*sections(), *BASES}, key=lambda section: section.__name__)


@pytest.mark.parametrize("section", ALL_SECTIONS, ids=lambda it: it.__name__)
def test_every_setting_is_shown(section):
    tree = yaml.safe_load(with_examples())
    settings = {field.alias or name for name, field in section.model_fields.items()}
    for base in BASES:
        if section is not base and issubclass(section, base):
            settings -= base.model_fields.keys()
    keys = {key for block in shown(section, tree) for key in block}

    assert settings <= keys


def test_what_is_not_an_example_is_shown_with_its_default():
    tree = yaml.safe_load(REFERENCE.read_text())
    written = Config.model_validate({**tree, "keys": [], "mcp_servers": {}})
    unwritten = Config.model_validate({"model_list": tree["model_list"]})

    for name in ("server", "loop", "limits", "upstream", "logging", "auth", "version"):
        assert getattr(written, name) == getattr(unwritten, name)


def test_its_first_line_names_the_schema_for_editors():
    assert REFERENCE.read_text().splitlines()[0] == "# yaml-language-server: $schema=./config.schema.json"


def test_the_committed_schema_is_current():
    assert (ROOT / "config.schema.json").read_text() == json_schema_text()


def test_the_schema_accepts_the_file_with_every_example_and_refuses_a_misspelt_key():
    schema = jsonschema_rs.validator_for(json_schema())
    tree = yaml.safe_load(with_examples())

    assert [str(error) for error in schema.iter_errors(tree)] == []
    assert schema.is_valid(yaml.safe_load(REFERENCE.read_text()))
    tree["loop"]["max_iteration"] = 3
    assert not schema.is_valid(tree)


def test_the_schema_accepts_a_reference_where_a_number_is_due():
    schema = jsonschema_rs.validator_for(json_schema())
    models = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]

    assert schema.is_valid({"server": {"port": "${PORT:-8000}"}, "model_list": models})
    assert not schema.is_valid({"server": {"port": "eighty"}, "model_list": models})


def test_every_setting_says_what_it_is_for():
    schema = json_schema()
    blocks = {section: schema if section is Config else schema["$defs"][section.__name__] for section in sections()}
    mute = [
        f"{section.__name__}.{name}"
        for section, block in blocks.items()
        for name, field in section.model_fields.items()
        if not is_explained(block["properties"][field.alias or name])
    ]

    assert mute == []
    assert LitellmParams in blocks


def is_explained(setting: dict[str, Any]) -> bool:
    return any(found.get("description") for found in (setting, *setting.get("anyOf", ())))


def test_every_format_that_is_read_can_be_named_in_the_config() -> None:
    assert set(get_args(TextFormat)) == FORMATS
