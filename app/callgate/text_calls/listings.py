"""Lists tools in a prompt: in the formats that models were trained on, and a plain one for all others."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool for a prompt."""

    name: str
    description: str
    parameters: Mapping[str, Any]


Listing: TypeAlias = Callable[[Sequence[ToolSpec]], str]


# JSON -----------------------------------------------------------------------------------------------------------------


def in_tools_tag(tools: Sequence[ToolSpec]) -> str:
    """List tools for Hermes, Qwen, GLM and most others: OpenAI's format, one tool per line."""
    lines = "\n".join(_json({"type": "function", "function": _spec(tool)}) for tool in tools)
    return f"<tools>\n{lines}\n</tools>"


def in_functions_tag(tools: Sequence[ToolSpec]) -> str:
    lines = "\n".join(f"<function>{_json(_spec(tool))}</function>" for tool in tools)
    return f"<functions>\n{lines}\n</functions>"


def one_a_line(tools: Sequence[ToolSpec]) -> str:
    return "\n".join(_json(_spec(tool)) for tool in tools)


def as_list(tools: Sequence[ToolSpec]) -> str:
    return _json([_spec(tool) for tool in tools])


def in_mistrals_marks(tools: Sequence[ToolSpec]) -> str:
    listed = _json([{"type": "function", "function": _spec(tool)} for tool in tools])
    return f"[AVAILABLE_TOOLS] {listed}[/AVAILABLE_TOOLS]"


def in_phi4s_marks(tools: Sequence[ToolSpec]) -> str:
    return f"<|tool|>{as_list(tools)}<|/tool|>"


def in_sentences(tools: Sequence[ToolSpec]) -> str:
    """List tools for Functionary 3.1."""
    return "\n\n".join(
        f"Use the function '{tool.name}' to '{tool.description}'\n{_json(_spec(tool))}" for tool in tools
    )


def as_menu(tools: Sequence[ToolSpec]) -> str:
    """List tools for ReAct."""
    return "\n".join(f"{tool.name}: {tool.description} Input: {_json(compact(tool.parameters))}" for tool in tools)


# XML ------------------------------------------------------------------------------------------------------------------


def as_xml(tools: Sequence[ToolSpec]) -> str:
    """List tools for Qwen3-Coder: tags down to each parameter, JSON below."""
    return "\n".join(["<tools>", *(_xml_function(tool) for tool in tools), "</tools>"])


def _xml_function(tool: ToolSpec) -> str:
    lines = ["<function>", f"<name>{tool.name}</name>"]
    if tool.description:
        lines.append(f"<description>{tool.description}</description>")
    lines.append("<parameters>")
    parameters = compact(tool.parameters)
    for name, schema in _mapping(parameters.get("properties")).items():
        lines += ["<parameter>", f"<name>{name}</name>"]
        lines += [f"<{key}>{_bare(value)}</{key}>" for key, value in _mapping(schema).items()]
        lines.append("</parameter>")
    other_keys = {key: value for key, value in parameters.items() if key not in ("type", "properties")}
    lines += [f"<{key}>{_bare(value)}</{key}>" for key, value in other_keys.items()]
    return "\n".join([*lines, "</parameters>", "</function>"])


def _bare(value: Any) -> str:
    if isinstance(value, str):
        return value
    return _json(value)


# TypeScript -----------------------------------------------------------------------------------------------------------


def as_typescript(tools: Sequence[ToolSpec]) -> str:
    """List tools for Harmony and Functionary 3.2: a namespace of types, shorter and less expressive than JSON Schema."""
    types = []
    for tool in tools:
        has_parameters = bool(_mapping(tool.parameters.get("properties")))
        if has_parameters:
            signature = f"(_: {_ts_object(tool.parameters)})"
        else:
            signature = "()"
        types.append(f"{_ts_comment(tool.description)}type {tool.name} = {signature} => any;\n")
    return "\n".join(["namespace functions {", "", *types, "} // namespace functions"])


def _ts_comment(text: Any) -> str:
    if isinstance(text, str):
        return "".join(f"// {line}\n" for line in text.splitlines())
    return ""


def _ts_object(schema: Mapping[str, Any]) -> str:
    required = schema.get("required") or ()
    lines = [
        f"{_ts_comment(_mapping(inner).get('description'))}{name}{'' if name in required else '?'}: {_ts_type(inner)},"
        for name, inner in _mapping(schema.get("properties")).items()
    ]
    return "\n".join(["{", *lines, "}"])


def _ts_type(schema: Any) -> str:
    """Return the type, or the schema as JSON in a comment where TypeScript has no simple type."""
    place = _mapping(schema)
    if "enum" in place:
        return " | ".join(_json(value) for value in place["enum"])
    if "const" in place:
        return _json(place["const"])
    for word in ("anyOf", "oneOf"):
        if isinstance(place.get(word), list):
            return " | ".join(_ts_type(branch) for branch in place[word])
    kind = place.get("type")
    if isinstance(kind, list):
        return " | ".join(_ts_type({**place, "type": one_type}) for one_type in kind)
    if kind == "array":
        return f"Array<{_ts_type(place.get('items'))}>"
    if kind == "object" and place.get("properties"):
        return _ts_object(place)
    if kind in _TS_WORDS:
        return _TS_WORDS[kind]
    if place:
        return f"any /* {_json(place)} */"
    return "any"


_TS_WORDS = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "object",
}


# Pieces ---------------------------------------------------------------------------------------------------------------


def _spec(tool: ToolSpec) -> dict[str, Any]:
    spec = {"name": tool.name, "description": tool.description, "parameters": compact(tool.parameters)}
    return {key: value for key, value in spec.items() if value != ""}


def compact(schema: Any) -> Any:
    """Return the schema without titles, in which generators repeat the names."""
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _compact_under(key, value)
        for key, value in schema.items()
        if not (key == "$schema" or (key == "title" and isinstance(value, str)))
    }


def _compact_under(key: str, value: Any) -> Any:
    if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, Mapping):
        # These map names to schemas, and a property may well be called title.
        return {name: compact(schema) for name, schema in value.items()}
    if key in ("default", "const", "enum", "examples"):
        return value
    if isinstance(value, list):
        return [compact(item) for item in value]
    return compact(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {}


def _json(value: Any) -> str:
    # Without blanks, which saves a quarter of the tokens.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
