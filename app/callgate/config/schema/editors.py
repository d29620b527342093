"""The JSON Schema of `config.yaml`, for editors."""

import ast
import inspect
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from callgate.config.schema.values import Section
from callgate.config.schema.whole import Config
from callgate.tools.kinds.mcp.settings import OF_OTHER_CLIENTS

REFERENCE = {
    "type": "string",
    "pattern": r"^(os\.environ/|file:/|file:\./|.*\$\{)",
    "description": "A reference that is resolved at start: os.environ/NAME, ${NAME}, ${NAME:-default} or file:/path.",
}
"""A reference may also stand for a number or a choice."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `config.yaml`, for editors."""
    schema = Config.model_json_schema()
    _explain(schema)
    for definition in [schema, *schema["$defs"].values()]:
        properties = definition.get("properties", {})
        for name, setting in properties.items():
            choices: list[dict[str, Any]] = setting.get("anyOf", [setting])
            if not any(map(_refuses_references, choices)):
                properties[name] = setting
            else:
                aside: dict[str, Any] = {
                    name: setting[name] for name in ("title", "description", "default") if name in setting
                }
                bare = [{name: value for name, value in choice.items() if name not in aside} for choice in choices]
                properties[name] = {**aside, "anyOf": [*bare, {"$ref": "#/$defs/Reference"}]}
    schema["$defs"]["Reference"] = REFERENCE
    for name in schema["properties"].keys() - set(schema["required"]):
        # A block with only comments is null in YAML, which `load` takes for the defaults.
        block = schema["properties"][name]
        may_be_empty = block.get("type") in {"array", "object"} or "$ref" in block
        schema["properties"][name] = {"anyOf": [block, {"type": "null"}]} if may_be_empty else block
    for alias in ("mcpServers", "servers"):
        schema["properties"][alias] = schema["properties"]["mcp_servers"]
    server = schema["$defs"]["McpServer"]["properties"]
    server["transport"] = server["type"]
    server |= {name: {} for name in sorted(OF_OTHER_CLIENTS)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Callgate's config.yaml"}


def _explain(schema: dict[str, Any]) -> None:
    """Add the docstrings of the settings. Only here, because pydantic would read the sources at every start."""
    texts = dict(_texts())
    sections = {section.__name__: section for section in _sections(Section)}
    for name, definition in [(Config.__name__, schema), *schema["$defs"].items()]:
        properties = definition.get("properties", {})
        for base in sections[name].__mro__ if name in sections else ():
            if not issubclass(base, Section):
                continue
            for field, text in texts.get(base.__name__, {}).items():
                alias = base.model_fields[field].alias or field
                properties[alias] = dict(sorted({"description": text, **properties[alias]}.items()))


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for kind in section.__subclasses__():
        yield from _sections(kind)


def _texts() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield, for each class of settings, the docstrings of its fields."""
    package = Path(__file__).parents[2]
    for file in [*package.glob("config/schema/*.py"), *package.rglob("settings.py")]:
        for block in ast.parse(file.read_text()).body:
            if isinstance(block, ast.ClassDef):
                yield block.name, dict(_texts_below_fields(block))


def _texts_below_fields(block: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(block.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def _refuses_references(choice: dict[str, Any]) -> bool:
    return choice.get("type") in {"integer", "number", "boolean"} or not choice.keys().isdisjoint({"enum", "pattern"})


def json_schema_text() -> str:
    """Return the text of `config.schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
