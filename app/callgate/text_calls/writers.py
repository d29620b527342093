"""Writes a turn with tool calls, and results, in each format: the reverse of the reader.

The calls written here for the history and for examples are read back by the same format's reader as the same calls. The JSON
formats can express any JSON object. The tag formats have only text, with these limits:

- a value that is no string, under a parameter whose schema allows strings, comes back as its JSON text;
- a parameter's name must fit its tag: no quote, angle bracket, line break or blank at its ends, and not empty;
- a string that contains the closing tag of its own or the opening tag of any parameter, or that looks like CDATA or ends
  in a carriage return, is put into one CDATA section; if it also contains `]]>` nothing can hold it, and it is written raw;
- `minimax_m3` has no way to write an empty list or object, nor inside one what the schema does not say is no string;
- `gemma4` and `functiongemma` have no way to write their own string mark inside a string, and `pythonic` and `olmo3` no
  argument that is not an identifier.

`deepseek_dsml` and `kimi_k3` mark which values are JSON and do not have these limits. A history with such a value is still
written, nearly as the model wrote it; nothing is run from it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of an earlier turn, or of an example."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class PastResult:
    """The result of an earlier call."""

    name: str
    text: str
    id: str = ""


TurnWriter: TypeAlias = Callable[[str, Sequence[PastCall]], str]
"""Writes an assistant message: its text, then its calls."""

ResultsWriter: TypeAlias = Callable[[Sequence[PastResult]], str]
"""Writes the message with the results of one turn, in the order of its calls."""


# Turns: JSON formats --------------------------------------------------------------------------------------------------


def litellm_json(text: str, calls: Sequence[PastCall]) -> str:
    objects = [_object(call, "arguments") for call in calls]
    return _after(text, objects[0] if len(objects) == 1 else _listed(objects))


def llama3_json(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, "; ".join(_object(call, "parameters") for call in calls))


def json_list(begin: str, end: str = "") -> TurnWriter:
    """Make a writer of a list of call objects between two marks."""

    def write(text: str, calls: Sequence[PastCall]) -> str:
        return _after(text, f"{begin}{_listed([_object(call, 'arguments') for call in calls])}{end}")

    return write


def json_each(begin: str, end: str = "", *, key: str = "arguments") -> TurnWriter:
    """Make a writer of call objects, each between two marks."""

    def write(text: str, calls: Sequence[PastCall]) -> str:
        return _after(text, "\n".join(f"{begin}{_object(call, key)}{end}" for call in calls))

    return write


def apertus(text: str, calls: Sequence[PastCall]) -> str:
    return _after(
        text, f"<|tools_prefix|>{_listed([_json({call.name: call.arguments}) for call in calls])}<|tools_suffix|>"
    )


def command_r_plus(text: str, calls: Sequence[PastCall]) -> str:
    actions = [{"tool_name": call.name, "parameters": call.arguments} for call in calls]
    return _after(text, f"Action: ```json\n{json.dumps(actions, ensure_ascii=False, indent=4)}\n```")


def glm4(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, "\n".join(f"{call.name}\n{_json(call.arguments)}" for call in calls))


def command_r(text: str, calls: Sequence[PastCall]) -> str:
    actions = [
        _json({"tool_call_id": str(place), "tool_name": call.name, "parameters": call.arguments})
        for place, call in enumerate(calls)
    ]
    return _after(text, f"<|START_ACTION|>[\n  {f',{chr(10)}  '.join(actions)}\n]<|END_ACTION|>")


def deepseek_v3(text: str, calls: Sequence[PastCall]) -> str:
    return _deepseek(
        text, [f"function<｜tool▁sep｜>{call.name}\n```json\n{_json(call.arguments)}\n```" for call in calls]
    )


def deepseek_v31(text: str, calls: Sequence[PastCall]) -> str:
    return _deepseek(text, [f"{call.name}<｜tool▁sep｜>{_json(call.arguments)}" for call in calls])


def _deepseek(text: str, bodies: Sequence[str]) -> str:
    calls = "\n".join(f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>" for body in bodies)
    return _after(text, f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")


def kimi_k2(text: str, calls: Sequence[PastCall]) -> str:
    written = "".join(
        f"<|tool_call_begin|>{kimi_id(call, place)}<|tool_call_argument_begin|>{_json(call.arguments)}<|tool_call_end|>"
        for place, call in enumerate(calls)
    )
    return _after(text, f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>")


def kimi_id(call: PastCall | PastResult, place: int) -> str:
    """Return the header, which is the call's id. A call with an id of this format keeps it."""
    own = call.id.startswith(f"functions.{call.name}:")
    if own:
        return call.id
    return f"functions.{call.name}:{place}"


def functionary_v32(text: str, calls: Sequence[PastCall]) -> str:
    prose = f">>>all\n{text}\n" if text else ""
    return prose + "\n".join(f">>>{call.name}\n{_json(call.arguments)}" for call in calls)


def functionary_v31(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, "\n".join(f"<function={call.name}>{_json(call.arguments)}</function>" for call in calls))


def harmony(text: str, calls: Sequence[PastCall]) -> str:
    if text:
        messages = [f"<|channel|>commentary<|message|>{text}<|end|>"]
    else:
        messages = []
    messages += [
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{_json(call.arguments)}<|call|>"
        for call in calls
    ]
    return "<|start|>assistant".join(messages)


def react(text: str, calls: Sequence[PastCall]) -> str:
    """Write a turn with one call; the format does not support several."""
    call = calls[0]
    thought = f"Thought: {text}\n" if text else ""
    return f"{thought}Action: {call.name}\nAction Input: {_json(call.arguments)}"


# Turns: tag formats ---------------------------------------------------------------------------------------------------


def xml(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, _invokes(calls, wrapper="function_calls", prefix=""))


def antml(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, _invokes(calls, wrapper=f"{ANTML}function_calls", prefix=ANTML))


def minimax(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, _invokes(calls, wrapper="minimax:tool_call", prefix="", inline=True))


def dots(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, _invokes(calls, wrapper="dots_function_call", prefix="", inline=True))


def step3(text: str, calls: Sequence[PastCall]) -> str:
    bodies = (
        f"<｜tool_call_begin｜>function<｜tool_sep｜>{_invoke(call, 'steptml:', inline=True)}<｜tool_call_end｜>"
        for call in calls
    )
    return _after(text, "\n".join(["<｜tool_calls_begin｜>", *bodies, "<｜tool_calls_end｜>"]))


def muse(text: str, calls: Sequence[PastCall]) -> str:
    messages = [f" to=user<|message|>{text}<|eom|>"] if text else []
    messages += [
        f" to={call.name}<|message|>{_invokes([call], wrapper='atem:function_calls', prefix='atem:', inline=True)}<|eom|>"
        for call in calls
    ]
    return "<|start|>assistant".join(messages)


def minicpm5(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, "\n".join(_tagged(call, "function", "param", inline=True) for call in calls))


ANTML = "antml:"


def _invokes(calls: Sequence[PastCall], *, wrapper: str, prefix: str, inline: bool = False) -> str:
    return "\n".join([f"<{wrapper}>", *(_invoke(call, prefix, inline=inline) for call in calls), f"</{wrapper}>"])


def _invoke(call: PastCall, prefix: str, *, inline: bool) -> str:
    return _tagged(call, f"{prefix}invoke", f"{prefix}parameter", inline=inline)


def _tagged(call: PastCall, tag: str, parameter: str, *, inline: bool) -> str:
    lines = [f'<{tag} name="{call.name}">']
    for key, value in call.arguments.items():
        body = _value(value, f"<{parameter}", f"</{parameter}>", inline=inline)
        lines.append(f'<{parameter} name="{key}">{body}</{parameter}>')
    return "\n".join([*lines, f"</{tag}>"])


def deepseek_dsml(text: str, calls: Sequence[PastCall]) -> str:
    lines = ["<｜DSML｜function_calls>"]
    for call in calls:
        lines.append(f'<｜DSML｜invoke name="{call.name}">')
        lines += [_dsml_parameter(key, value) for key, value in call.arguments.items()]
        lines.append("</｜DSML｜invoke>")
    lines.append("</｜DSML｜function_calls>")
    return _after(text, "\n".join(lines))


def _dsml_parameter(key: str, value: Any) -> str:
    opening = "<｜DSML｜parameter"
    closing = "</｜DSML｜parameter>"
    plain = isinstance(value, str) and not _needs_cdata(value, opening, closing)
    body = value if plain else _json_without(opening, closing, value=value)
    return f'{opening} name="{key}" string="{"true" if plain else "false"}">{body}{closing}'


def kimi_k3(text: str, calls: Sequence[PastCall]) -> str:
    bodies = "".join(
        f'<|open|>call tool="{call.name}" index="{place}"<|sep|>'
        f"{''.join(_k3_argument(key, value) for key, value in call.arguments.items())}<|close|>call<|sep|>"
        for place, call in enumerate(calls, 1)
    )
    return _after(text, f"<|open|>tools<|sep|>{bodies}<|close|>tools<|sep|>")


def _k3_argument(key: str, value: Any) -> str:
    opening = "<|open|>argument"
    closing = "<|close|>argument<|sep|>"
    plain = isinstance(value, str) and not _needs_cdata(value, opening, closing)
    body = value if plain else _json_without(opening, closing, value=value)
    return f'{opening} key="{key}" type="{"string" if plain else _json_type(value)}"<|sep|>{body}{closing}'


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case list() | tuple():
            return "array"
        case _:
            return "object"


def functions(wrapper: str) -> TurnWriter:
    """Make a writer of `<function=N>` with its parameters on lines of their own, in a wrapper for each call."""

    def write(text: str, calls: Sequence[PastCall]) -> str:
        return _after(text, "\n".join(_function(call, wrapper) for call in calls))

    return write


def _function(call: PastCall, wrapper: str) -> str:
    lines = [f"<{wrapper}>", f"<function={call.name}>"]
    for key, value in call.arguments.items():
        lines += [f"<parameter={key}>", _value(value, "<parameter=", "</parameter>", inline=True), "</parameter>"]
    return "\n".join([*lines, "</function>", f"</{wrapper}>"])


def keys_and_values(
    begin: str = "<tool_call>", end: str = "</tool_call>", *, quoted: bool = False, around: tuple[str, ...] = ()
) -> TurnWriter:
    """Make a writer of a name, and tags for each key and each value. `around`: marks around all calls."""

    def write(text: str, calls: Sequence[PastCall]) -> str:
        bodies = [_keyed(call, begin, end, quoted=quoted) for call in calls]
        return _after(text, "\n".join([*around[:1], *bodies, *around[1:]]))

    def _keyed(call: PastCall, begin: str, end: str, *, quoted: bool) -> str:
        name = f"{call.name}<tool_sep>" if around else call.name
        lines = [f"{begin}{name}"]
        for key, value in call.arguments.items():
            opening = "<arg_key>"
            closing = "</arg_value>"
            if quoted:
                body = _json_without(opening, closing, value=value)
            else:
                body = _value(value, opening, closing, inline=True)
            lines += [f"{opening}{key}</arg_key>", f"<arg_value>{body}{closing}"]
        return "\n".join([*lines, end])

    return write


def solar(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, "\n".join(map(_solar_call, calls)))


def _solar_call(call: PastCall) -> str:
    opening = "<|tool_arg:start|>"
    closing = "<|tool_arg:end|>"
    lines = [f"<|tool_call:start|>{call.name}"]
    for key, value in call.arguments.items():
        lines.append(f"{opening}{key}<|tool_arg:value|>{_value(value, opening, closing, inline=True)}{closing}")
    return "\n".join([*lines, "<|tool_call:end|>"])


def minimax_m3(text: str, calls: Sequence[PastCall]) -> str:
    bodies = "".join(f'{M3}<invoke name="{call.name}">{_m3_members(call.arguments)}{M3}</invoke>\n' for call in calls)
    return _after(text, f"{M3}<tool_call>\n{bodies}{M3}</tool_call>")


M3 = "]<]minimax[>["


def _m3_members(members: Mapping[str, Any]) -> str:
    return "".join(f"{M3}<{key}>{_m3_value(value)}{M3}</{key}>" for key, value in members.items())


def _m3_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return _m3_members(value)
    if isinstance(value, list | tuple):
        return "".join(_m3_members({"item": item}) for item in value)
    if isinstance(value, str):
        return value
    return _json(value)


def _value(value: Any, opening: str, closing: str, *, inline: bool) -> str:
    """Write a value as raw text that is read back the same. Unless `inline`, readers remove one line break at either end."""
    if not isinstance(value, str):
        return _json_without(opening, closing, value=value)
    if not _needs_cdata(value, opening, closing):
        is_plain = inline or not (value.startswith(("\n", "\r")) or value.endswith("\n"))
        if is_plain:
            return value
        return f"\n{value}\n"
    if "]]>" in value:
        return value
    return f"<![CDATA[{value}]]>"


def _needs_cdata(text: str, opening: str, closing: str) -> bool:
    return closing in text or opening in text or text.endswith("\r") or text.lstrip().startswith("<![CDATA[")


# Turns: the formats with a syntax of their own ------------------------------------------------------------------------


def pythonic(text: str, calls: Sequence[PastCall]) -> str:
    listed = ", ".join(f"{call.name}({_keywords(call.arguments)})" for call in calls)
    # A bare list counts only if it is the whole text.
    if text:
        return f"{text}\n\n<|python_start|>[{listed}]<|python_end|>"
    return f"[{listed}]"


def _keywords(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def olmo3(text: str, calls: Sequence[PastCall]) -> str:
    lines = [f"{call.name}({_keywords(call.arguments)})" for call in calls]
    return _after(text, "\n".join(["<function_calls>", *lines, "</function_calls>"]))


def gemma4(text: str, calls: Sequence[PastCall]) -> str:
    return _after(text, "".join(f"<|tool_call>call:{call.name}{_gemma(call.arguments)}<tool_call|>" for call in calls))


def functiongemma(text: str, calls: Sequence[PastCall]) -> str:
    bodies = (f"call:{call.name}{_gemma(call.arguments, FUNCTIONGEMMA_MARK)}" for call in calls)
    return _after(text, "".join(f"<start_function_call>{body}<end_function_call>" for body in bodies))


GEMMA_MARK = '<|"|>'
FUNCTIONGEMMA_MARK = "<escape>"


def _gemma(value: Any, mark: str = GEMMA_MARK) -> str:
    if isinstance(value, str):
        return f"{mark}{value}{mark}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_gemma(inner, mark)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_gemma(inner, mark) for inner in value) + "]"
    return _json(value)


# Results --------------------------------------------------------------------------------------------------------------


def tagged_results(results: Sequence[PastResult]) -> str:
    """Write results for formats without a text format of their own, each with the name of its tool."""
    return "\n".join(
        _enclosed(f'<tool_result name="{result.name}">', result.text, "</tool_result>") for result in results
    )


def tool_responses(results: Sequence[PastResult]) -> str:
    return "\n".join(_enclosed("<tool_response>", result.text, "</tool_response>") for result in results)


def hermes_results(results: Sequence[PastResult]) -> str:
    bodies = [
        _json_without("</tool_response>", value={"name": result.name, "content": result.text}) for result in results
    ]
    return "\n".join(f"<tool_response>\n{body}\n</tool_response>" for body in bodies)


def function_results(results: Sequence[PastResult]) -> str:
    return _function_results(results, "")


def antml_results(results: Sequence[PastResult]) -> str:
    return _function_results(results, ANTML)


def dsml_results(results: Sequence[PastResult]) -> str:
    return _function_results(results, "｜DSML｜")


def _function_results(results: Sequence[PastResult], prefix: str) -> str:
    closing = f"</{prefix}result>"
    inside = "\n".join(_enclosed(f'<{prefix}result name="{result.name}">', result.text, closing) for result in results)
    return f"<{prefix}function_results>\n{inside}\n</{prefix}function_results>"


def mistral_results(results: Sequence[PastResult]) -> str:
    end = "[/TOOL_RESULTS]"
    return "".join(
        f"[TOOL_RESULTS] {_json_without(end, value={'name': result.name, 'content': result.text})}{end}"
        for result in results
    )


def deepseek_results(results: Sequence[PastResult]) -> str:
    outputs = "\n".join(
        f"<｜tool▁output▁begin｜>{_kept_inside(result.text, '<｜tool▁output▁end｜>')}<｜tool▁output▁end｜>"
        for result in results
    )
    return f"<｜tool▁outputs▁begin｜>{outputs}<｜tool▁outputs▁end｜>"


def kimi_results(results: Sequence[PastResult]) -> str:
    return "\n\n".join(f"## Return of {kimi_id(result, place)}\n{result.text}" for place, result in enumerate(results))


def command_r_results(results: Sequence[PastResult]) -> str:
    listed = [
        {"tool_call_id": str(place), "results": {"0": result.text}, "is_error": None}
        for place, result in enumerate(results)
    ]
    end = "<|END_TOOL_RESULT|>"
    return f"<|START_TOOL_RESULT|>{_json_without(end, value=listed)}{end}"


def harmony_results(results: Sequence[PastResult]) -> str:
    return "".join(
        f"<|start|>functions.{result.name} to=assistant<|channel|>commentary<|message|>"
        f"{_kept_inside(result.text, '<|end|>')}<|end|>"
        for result in results
    )


def gemma_results(results: Sequence[PastResult]) -> str:
    return "".join(
        f"<|tool_response>response:{result.name}{_gemma({'value': _kept_inside(result.text, GEMMA_MARK)})}<tool_response|>"
        for result in results
    )


def functiongemma_results(results: Sequence[PastResult]) -> str:
    mark = FUNCTIONGEMMA_MARK
    return "".join(
        f"<start_function_response>response:{result.name}"
        f"{_gemma({'value': _kept_inside(result.text, mark)}, mark)}<end_function_response>"
        for result in results
    )


def observations(results: Sequence[PastResult]) -> str:
    return "\n".join(f"Observation: {result.text}" for result in results)


def _enclosed(opening: str, body: str, closing: str) -> str:
    return f"{opening}\n{_kept_inside(body, closing)}\n{closing}"


def _kept_inside(body: str, closing: str) -> str:
    """Escape the end mark in a result, so that a tool's text cannot end its result and continue as another message."""
    return body.replace(closing, f"{closing[0]}\\{closing[1:]}")


# Pieces ---------------------------------------------------------------------------------------------------------------


def _after(text: str, calls: str) -> str:
    if text:
        return f"{text}\n\n{calls}"
    return calls


def _object(call: PastCall, key: str) -> str:
    return _json({"name": call.name, key: call.arguments})


def _listed(objects: Sequence[str]) -> str:
    return f"[{', '.join(objects)}]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_without(*marks: str, value: Any) -> str:
    """Encode a value without the marks, which can only be inside strings and are escaped there."""
    text = _json(value)
    for mark in marks:
        text = text.replace(mark, f"\\u{ord(mark[0]):04x}{mark[1:]}")
    return text
