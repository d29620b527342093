"""Writes the prompts for tool calls as text: one `Style` for each format.

A style defines how tools are listed, how calls and results are written, and how it is explained. The example in a prompt is
written by the same writer as the history, so that the reader can read it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from callgate.text_calls import listings, writers
from callgate.text_calls.listings import Listing, ToolSpec
from callgate.text_calls.writers import PastCall, ResultsWriter, TurnWriter


@dataclass(frozen=True, slots=True)
class Style:
    """The prompt side of one format."""

    format: str
    listing: Listing
    write: TurnWriter
    write_results: ResultsWriter
    several: str = "Several calls may follow one another in one answer."
    one_call_a_turn: bool = False
    stop: tuple[str, ...] = ()
    """Stop sequences, where models are known to continue with an invented result."""
    arguments_key: str | None = None
    """The key of the arguments in formats whose call is one bare JSON object, which can be enforced by schema."""


def style_for(format: str) -> Style:
    """Return the style of a format; `json` is the short name in configs."""
    return _STYLES[ALIASES.get(format, format)]


def can_be_constrained(format: str) -> bool:
    return style_for(format).arguments_key is not None


ALIASES = {"json": "litellm_json"}

_ONE_LIST = "Several calls are written as one list."
_HERMES = writers.json_each("<tool_call>\n", "\n</tool_call>")

_STYLES = {
    style.format: style
    for style in (
        Style(
            "litellm_json",
            listings.one_a_line,
            writers.litellm_json,
            writers.tagged_results,
            several="Several calls are written as one JSON list of such objects.",
            arguments_key="arguments",
        ),
        Style(
            "llama3_json",
            listings.one_a_line,
            writers.llama3_json,
            writers.tagged_results,
            several="Several calls are separated by `; `.",
            arguments_key="parameters",
        ),
        Style("xml", listings.in_functions_tag, writers.xml, writers.function_results),
        Style("antml", listings.in_functions_tag, writers.antml, writers.antml_results),
        Style("minimax", listings.in_tools_tag, writers.minimax, writers.tagged_results),
        Style("deepseek_dsml", listings.one_a_line, writers.deepseek_dsml, writers.dsml_results),
        Style("qwen3_coder", listings.as_xml, writers.functions("tool_call"), writers.tool_responses),
        Style("glm45", listings.in_tools_tag, writers.keys_and_values(), writers.tool_responses),
        Style("dots", listings.in_functions_tag, writers.dots, writers.function_results),
        Style("step3", listings.in_functions_tag, writers.step3, writers.function_results),
        Style("muse", listings.in_functions_tag, writers.muse, writers.tagged_results),
        Style("minicpm5", listings.in_tools_tag, writers.minicpm5, writers.tool_responses),
        Style("minimax_m3", listings.in_tools_tag, writers.minimax_m3, writers.tagged_results),
        Style("kimi_k3", listings.as_list, writers.kimi_k3, writers.tagged_results),
        Style("seed_oss", listings.as_xml, writers.functions("seed:tool_call"), writers.tool_responses),
        Style("hyperclovax", listings.in_tools_tag, writers.keys_and_values(quoted=True), writers.tool_responses),
        Style(
            "hunyuan",
            listings.in_tools_tag,
            writers.keys_and_values(around=("<tool_calls>", "</tool_calls>")),
            writers.tool_responses,
        ),
        Style("solar", listings.in_tools_tag, writers.solar, writers.tool_responses),
        Style("hermes", listings.in_tools_tag, _HERMES, writers.hermes_results),
        Style("ernie45", listings.in_tools_tag, _HERMES, writers.hermes_results),
        Style(
            "longcat",
            listings.in_tools_tag,
            writers.json_each("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
            writers.tagged_results,
        ),
        Style(
            "tool_calls",
            listings.in_tools_tag,
            writers.json_list("<tool_calls>", "</tool_calls>"),
            writers.tagged_results,
            several=_ONE_LIST,
        ),
        Style(
            "apriel",
            listings.in_tools_tag,
            writers.json_list("<tool_calls>", "</tool_calls>"),
            writers.tagged_results,
            several=_ONE_LIST,
        ),
        Style(
            "nemotron",
            listings.as_list,
            writers.json_list("<TOOLCALL>", "</TOOLCALL>"),
            writers.tagged_results,
            several=_ONE_LIST,
        ),
        Style(
            "internlm2",
            listings.as_list,
            writers.json_each("<|action_start|><|plugin|>\n", "<|action_end|>", key="parameters"),
            writers.tagged_results,
        ),
        Style("apertus", listings.as_typescript, writers.apertus, writers.tagged_results, several=_ONE_LIST),
        Style("gigachat3", listings.as_typescript, writers.json_each("<|function_call|>"), writers.tagged_results),
        Style(
            "inkling",
            listings.as_list,
            writers.json_each("<|message_model|><|content_invoke_tool_json|>", "<|end_message|>", key="args"),
            writers.tagged_results,
        ),
        Style("granite_20b_fc", listings.as_list, writers.json_each("<function_call> "), writers.tagged_results),
        Style(
            "granite", listings.as_list, writers.json_list("<|tool_call|>"), writers.tool_responses, several=_ONE_LIST
        ),
        Style(
            "phi4", listings.in_phi4s_marks, writers.json_list("functools"), writers.tagged_results, several=_ONE_LIST
        ),
        Style(
            "mistral",
            listings.in_mistrals_marks,
            writers.json_list("[TOOL_CALLS] "),
            writers.mistral_results,
            several=_ONE_LIST,
        ),
        Style("command_r_plus", listings.as_list, writers.command_r_plus, writers.tagged_results, several=_ONE_LIST),
        Style("glm4", listings.as_list, writers.glm4, writers.tagged_results),
        Style("deepseek_v3", listings.one_a_line, writers.deepseek_v3, writers.deepseek_results),
        Style("deepseek_v31", listings.one_a_line, writers.deepseek_v31, writers.deepseek_results),
        Style("kimi_k2", listings.as_list, writers.kimi_k2, writers.kimi_results),
        Style("functionary_v32", listings.as_typescript, writers.functionary_v32, writers.tagged_results),
        Style("functionary_v31", listings.in_sentences, writers.functionary_v31, writers.tagged_results),
        Style("command_r", listings.as_list, writers.command_r, writers.command_r_results, several=_ONE_LIST),
        Style("harmony", listings.as_typescript, writers.harmony, writers.harmony_results),
        Style("gemma4", listings.in_tools_tag, writers.gemma4, writers.gemma_results),
        Style("functiongemma", listings.in_tools_tag, writers.functiongemma, writers.functiongemma_results),
        Style("olmo3", listings.in_functions_tag, writers.olmo3, writers.tagged_results),
        Style(
            "pythonic",
            listings.as_list,
            writers.pythonic,
            writers.tagged_results,
            several="Several calls stand in the same list. Write nothing but the list then.",
        ),
        Style(
            "react",
            listings.as_menu,
            writers.react,
            writers.observations,
            several="Write one Action only, then stop. When you know the answer, write `Final Answer: ` and the answer.",
            one_call_a_turn=True,
            stop=("\nObservation:",),
        ),
    )
}

FORMATS: tuple[str, ...] = tuple(_STYLES)
"""Every format a model can be asked for."""


# The description ------------------------------------------------------------------------------------------------------


def describe(style: Style, tools: Sequence[ToolSpec], *, every_example: bool = False) -> str:
    """Write the part of the system prompt that explains the tools and how to call them.

    It depends on the tools only, so that it is the same in all turns and stays in a server's prompt cache.
    """
    examples = [
        style.write("", [PastCall(tool.name, example_arguments(tool.parameters))])
        for tool in (tools if every_example else tools[:1])
    ]
    if len(examples) == 1:
        form = "For example:"
    else:
        form = "One example for each tool:"
    rules = (
        f"{style.several} The results are given to you in the next message; never write a result yourself. "
        "Call only tools listed above, with arguments that satisfy the schema. "
        "When no tool is needed, answer in plain text without this form."
    )
    return "\n\n".join(
        (
            "You can call tools. These are the tools, with the JSON Schema of their arguments:",
            style.listing(tools),
            f"To call a tool, write the call in exactly this form and then stop. {form}",
            *examples,
            rules,
        )
    )


MUST_CALL = "Answer this with a tool call now, in the form described, and with nothing else."
MUST_CALL_ONE = "Answer this with a call of the tool `{name}` now, in the form described, and with nothing else."
ONE_AT_A_TIME = "Write at most one tool call in an answer."
NO_TOOLS_NOW = "No tool can be called now. Answer in plain text, from what is known so far."


def answer_form(schema: Mapping[str, Any] | None) -> str:
    """Describe the format that the client wants for the answer."""
    if schema is None:
        return "When you answer without a call, write nothing but one JSON object."
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f"When you answer without a call, write nothing but JSON that satisfies this schema:\n{text}"


# Worked examples ------------------------------------------------------------------------------------------------------


DEEPEST_EXAMPLE = 3


def example_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return example arguments: the required ones, or the first one where none is required."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return {}
    required = parameters.get("required")
    shown = [name for name in properties if isinstance(required, list) and name in required] or [next(iter(properties))]
    return {name: _example_value(name, properties[name], DEEPEST_EXAMPLE) for name in shown}


def _example_value(name: str, schema: Any, depth: int) -> Any:
    """Return the schema's own example, else a plain value of the right type."""
    if not isinstance(schema, Mapping):
        return f"some {name}"
    for word in ("examples", "enum"):
        if isinstance(schema.get(word), list) and schema[word]:
            return schema[word][0]
    for word in ("example", "const", "default"):
        if schema.get(word) is not None:
            return schema[word]
    return _plain_value(name, schema, depth)


def _plain_value(name: str, schema: Mapping[str, Any], depth: int) -> Any:
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            return _example_value(name, schema[word][0], depth)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "integer":
            return schema.get("minimum", 1)
        case "number":
            return schema.get("minimum", 1.5)
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            if depth:
                return [_example_value(name, schema.get("items", {}), depth - 1)]
            return []
        case "object":
            properties = schema.get("properties")
            required = schema.get("required")
            if not depth or not isinstance(properties, Mapping) or not isinstance(required, list):
                return {}
            return {
                name: _example_value(name, property_schema, depth - 1)
                for name, property_schema in properties.items()
                if name in required
            }
        case _:
            return f"some {name}"


# Constrained answers --------------------------------------------------------------------------------------------------


OTHERWISE = ".answer"
"""The namespace of the client's definitions, apart from those of tools, whose names have no dot."""


def call_schema(style: Style, tools: Sequence[ToolSpec], otherwise: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a `response_format` that allows only a call of one of the tools, or a value of the schema `otherwise`.

    Measured on a model of 135 million parameters: 0 of 10 calls were valid without it, 10 of 10 with it and an
    example for each tool.
    """
    assert style.arguments_key is not None
    definitions: dict[str, Any] = {}
    shapes = [
        {
            "type": "object",
            # `enum` with one value instead of `const`, which older converters from schema to grammar do not support.
            "properties": {
                "name": {"type": "string", "enum": [tool.name]},
                style.arguments_key: _moved(listings.compact(tool.parameters), tool.name, definitions)
                or {"type": "object"},
            },
            "required": ["name", style.arguments_key],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    if otherwise is not None:
        shapes.append(_moved(otherwise, OTHERWISE, definitions))
    schema = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
    if definitions:
        schema = {**schema, "$defs": definitions}
    return {"type": "json_schema", "json_schema": {"name": "tool_call", "schema": schema}}


def _moved(parameters: Mapping[str, Any], tool: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with their definitions moved to the root of the whole schema, where references point to."""
    own = {word: parameters[word] for word in ("$defs", "definitions") if isinstance(parameters.get(word), Mapping)}
    if not _refers_only_to(parameters, own):
        return {"type": "object"}
    for schemas in own.values():
        definitions |= {f"{tool}.{name}": _pointed(schema, tool) for name, schema in schemas.items()}
    other_keys = {key: value for key, value in parameters.items() if key not in own}
    moved: dict[str, Any] = _pointed(other_keys, tool)
    return moved


def _refers_only_to(schema: Any, own: Mapping[str, Any]) -> bool:
    if isinstance(schema, list):
        return all(_refers_only_to(item, own) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    target = schema.get("$ref")
    if isinstance(target, str):
        parts = target.split("/")
        if len(parts) != 3 or parts[0] != "#" or parts[2] not in own.get(parts[1], {}):
            return False
    return all(_refers_only_to(value, own) for value in schema.values())


def _pointed(schema: Any, tool: str) -> Any:
    if isinstance(schema, list):
        return [_pointed(item, tool) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _pointed(value, tool) for key, value in schema.items()}
    if isinstance(moved.get("$ref"), str):
        moved["$ref"] = f"#/$defs/{tool}.{moved['$ref'].split('/')[2]}"
    return moved
