"""What each format makes of texts that the corpus has no case for: one line each, judged by the corpus's own judge."""

from pathlib import Path
from typing import Any, Literal

from tests.corpus.judge import Case, verdict
from tests.text_calls.reading import batched

Modes = Literal["whole", "streamed", "both"]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("get_weather", city={"type": "string"}, unit={"type": "string"}),
    tool("get_time"),
    tool("search_docs", query={"type": "string"}, limit={"type": "integer"}, filters={"type": "object"}),
]
M3 = "]<]minimax[>["
WEATHER = {"name": "get_weather", "arguments": {"city": "A"}}
TIME: dict[str, Any] = {"name": "get_time", "arguments": {}}


def broken(name: str | None, reason: str) -> dict[str, Any]:
    return {"name": name, "reason": reason}


def calls_not_alone(*names: str) -> list[dict[str, Any]]:
    """Whole calls with prose behind them."""
    return [broken(name, "not_alone") for name in names]


def case(
    format: str,
    text: str,
    calls: list[dict[str, Any]] | None = None,
    incomplete: list[dict[str, Any]] | None = None,
    *,
    content: str = "",
    reasoning: str | None = None,
    warnings: list[str] | None = None,
    only: Modes = "both",
) -> Any:
    expect = {"calls": calls or [], "incomplete": incomplete or [], "content": content, "warnings": warnings or []}
    if reasoning is not None:
        expect["reasoning"] = reasoning
    data = {"format": format, "tools": TOOLS, "expect": expect}
    return data, text, only


def judged(data: dict[str, Any], key: str, text: str | list[str]) -> list[str]:
    return verdict(Case(Path(data["format"]), {**data, key: text}))


WEATHER_JSON = '{"name": "get_weather", "arguments": {"city": "A"}}'
TIME_JSON = '{"name": "get_time", "arguments": {}}'
LLAMA_JSON = '{"name": "get_weather", "parameters": {"city": "A"}}'
A = "antml" + ":"
D = "｜DSML｜"
INVOKE = '<invoke name="get_weather"><parameter name="city">A</parameter></invoke>'
QWEN = "<function=get_weather>\n<parameter=city>\nA\n</parameter>\n</function>"
GLM = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>A</arg_value>\n</tool_call>"
SEPARATOR, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
KIMI, KIMI_ARGUMENTS, KIMI_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
HARMONY = (
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + '{"city":"A"}'
)
GEMMA = '<|tool_call>call:get_weather{city:<|"|>A<|"|>}'


LISTS = {
    "hermes": "<tool_call>[{}]</tool_call>",
    "tool_calls": "<tool_calls>[{}]</tool_calls>",
    "nemotron": "<TOOLCALL>[{}]</TOOLCALL>",
    "granite": "<|tool_call|>[{}]",
    "phi4": "functools[{}]",
    "mistral": "[TOOL_CALLS] [{}]",
}
"""How a list of calls is written."""


def list_cases(format: str) -> list[Any]:
    """A bracket too many breaks the call it stands behind, in a list as elsewhere."""
    around, weather = LISTS[format], broken("get_weather", "invalid_json")
    return [
        case(format, around.replace("{}", WEATHER_JSON + "}"), incomplete=[weather]),
        case(format, around.replace("{}", WEATHER_JSON + "\n }"), incomplete=[weather]),
        case(format, around.replace("{}", f"{TIME_JSON}, {WEATHER_JSON}}}"), [TIME], [weather]),
    ]


def bare_cases(format: str) -> list[Any]:
    """Both formats of bare JSON read the same."""
    return [
        case(format, LLAMA_JSON + "\n" + TIME_JSON, [WEATHER, TIME]),
        case(format, LLAMA_JSON + "; " + TIME_JSON, [WEATHER, TIME]),
        case(format, "Sure:\n" + LLAMA_JSON, [WEATHER], content="Sure:"),
        case(format, LLAMA_JSON + " trailing", content=LLAMA_JSON + " trailing"),
        case(format, "[" + WEATHER_JSON + ', {"a": 1}]', content="[" + WEATHER_JSON + ', {"a": 1}]'),
        case(
            format,
            "[" + WEATHER_JSON + ",\n" + TIME_JSON + "\n]\nok",
            [],
            calls_not_alone("get_weather", "get_time"),
            content="ok",
        ),
        case(format, "[" + WEATHER_JSON + ",\n" + TIME_JSON + "\n]\n\n", [WEATHER, TIME]),
        case(format, "```json\n" + WEATHER_JSON + "\n```", [WEATHER]),
        case(format, "```python\nx = " + WEATHER_JSON + "\n```", content="```python x = " + WEATHER_JSON + " ```"),
        case(format, "```\n" + WEATHER_JSON + "\nfoo\n```", content="``` " + WEATHER_JSON + " foo ```"),
        case(
            format,
            '```json\n{"a": 1}\n```\nand\n```\n' + WEATHER_JSON + "\n```\nx",
            [],
            calls_not_alone("get_weather"),
            content='```json {"a": 1} ``` and x',
        ),
        case(
            format,
            '```json\n{"name": "get_weather", "arguments": {"ci',
            incomplete=[broken("get_weather", "truncated")],
        ),
        case(format, '```json\n{"name": "get_we', content='```json {"name": "get_we'),
        case(format, "{'name': 'get_weather', 'arguments': {}}", content="{'name': 'get_weather', 'arguments': {}}"),
        case(
            format,
            '{"name": "get_weather", "arguments": {"city": NaN}}',
            content='{"name": "get_weather", "arguments": {"city": NaN}}',
        ),
        case(
            format,
            '{"name": "get_weather", "arguments": {"city": "A", "city": "B"}}',
            incomplete=[broken("get_weather", "invalid_json")],
        ),
        case(
            format,
            '{"name": "get_weather", "arguments": {"city": "\\ud83d"}}',
            incomplete=[broken("get_weather", "invalid_json")],
        ),
        case(
            format,
            '{"name": "get_weather", "arguments": {"city": "A"}',
            incomplete=[broken("get_weather", "truncated")],
        ),
        case(format, '{"name": "nope", "arguments": {"ci', content='{"name": "nope", "arguments": {"ci'),
        case(format, '{"arguments": {"city": "A"}, "name": "get_weather"}', [WEATHER]),
        case(format, '{"name": "get_weather"}', content='{"name": "get_weather"}'),
        case(
            format,
            '{"name": "functions.get_weather", "arguments": {"city": "A"}}',
            [WEATHER],
            warnings=["name_repaired"],
        ),
        case(format, '{"name": "get_weather", "arguments": [1]}', incomplete=[broken("get_weather", "not_an_object")]),
        case(format, "<think>\n" + WEATHER_JSON + "\n</think>\n" + TIME_JSON, [TIME], reasoning=WEATHER_JSON),
        case(format, "hm\n</think>\n" + WEATHER_JSON, [WEATHER], reasoning="hm"),
        case(format, '{"x":\n' + WEATHER_JSON + "\n}", content='{"x": ' + WEATHER_JSON + " }"),
        case(format, "text " + WEATHER_JSON, content="text " + WEATHER_JSON),
        case(
            format,
            '{"name": "get_weather", "arguments": {"city": "l1\nl2"}}',
            [{"name": "get_weather", "arguments": {"city": "l1\nl2"}}],
            warnings=["arguments_repaired"],
        ),
        case(
            format,
            '{"name": "get_weather", "arguments": "{\\"city\\": \\"A\\"}"}',
            [WEATHER],
            warnings=["arguments_repaired"],
        ),
        case(format, WEATHER_JSON + "}", content=WEATHER_JSON + "}"),
        case(
            format, "[" + WEATHER_JSON + ', {"name": "get_time", "argum', [WEATHER], [broken("get_time", "truncated")]
        ),
        case(format, "```json\n" + WEATHER_JSON, [WEATHER]),
        case(format, "- " + WEATHER_JSON, [WEATHER]),
        case(format, "1. " + WEATHER_JSON + "\n2. " + TIME_JSON, [WEATHER, TIME]),
        case(format, "- see " + WEATHER_JSON, content="- see " + WEATHER_JSON),
        case(format, WEATHER_JSON + "<|im_end|>", [WEATHER], content="<|im_end|>"),
    ]


CASES = [
    case(
        "xml",
        "<function_calls>" + INVOKE + "</function_calls>\nand <function_calls>" + INVOKE + "</function_calls>\ndone",
        [],
        calls_not_alone("get_weather", "get_weather"),
        content="and done",
    ),
    case(
        "xml",
        "a <invoke name = 'get_weather' ><parameter name='city'>A</parameter></invoke>\nb",
        [],
        calls_not_alone("get_weather"),
        content="a b",
    ),
    case(
        "xml",
        "<function_calls>"
        + INVOKE
        + 'stray <!-- <invoke name="get_time"></invoke> --> '
        + '<invoke name="get_time"></invoke></function_calls>',
        [WEATHER, TIME],
    ),
    case("xml", "<function_calls>", incomplete=[broken(None, "truncated")]),
    case("xml", '<function_calls>\n<invoke name="get_w', incomplete=[broken(None, "truncated")]),
    case("xml", "<function_calls>" + INVOKE + "<invoke na", [WEATHER], [broken(None, "truncated")]),
    case("xml", "<function_calls>" + INVOKE + "\n", [WEATHER]),
    case("xml", 'x <invoke name="get_w', content='x <invoke name="get_w'),
    case("xml", 'x <invoker name="get_w"> y', content='x <invoker name="get_w"> y'),
    case(
        "xml",
        '<invoke name="get_weather"><parameter name="city">a </invoke> b</parameter></invoke>',
        [{"name": "get_weather", "arguments": {"city": "a </invoke> b"}}],
    ),
    case(
        "xml",
        '<invoke name="get_weather"><parameter name="city">A</parameter> oops </invoke>z',
        incomplete=[broken("get_weather", "invalid_markup")],
        content="z",
    ),
    case(
        "xml",
        '<invoke name="get_weather"><parameter>A</parameter></invoke>z',
        incomplete=[broken("get_weather", "invalid_markup")],
        content="z",
    ),
    case("xml", '<invoke name="get_weather"> oops ', incomplete=[broken("get_weather", "truncated")]),
    case("xml", '<invoke name="bash"><parameter name="a">', incomplete=[broken("bash", "unknown_tool")]),
    case(
        "xml",
        '<invoke name="get_weather"><parameter name="city">\n\nA\n\n</parameter></invoke>',
        [{"name": "get_weather", "arguments": {"city": "\nA\n"}}],
    ),
    case(
        "xml",
        '<invoke name="get_weather"><parameter name="city">\n<![CDATA[\nA\n]]>\n</parameter></invoke>',
        [{"name": "get_weather", "arguments": {"city": "\nA\n"}}],
    ),
    case(
        "xml",
        '<invoke name="get_weather"><parameter name="city">x<![CDATA[A]]></parameter></invoke>',
        [{"name": "get_weather", "arguments": {"city": "x<![CDATA[A]]>"}}],
    ),
    case(
        "xml",
        '<invoke name="functions.get_weather"><parameter name="city">A</parameter></invoke>',
        [WEATHER],
        warnings=["name_repaired"],
    ),
    case("xml", "reason</think>" + INVOKE, [WEATHER], reasoning="reason"),
    case("xml", INVOKE + "more</think>", reasoning=INVOKE + "more"),
    case("xml", "<think>x" + INVOKE, reasoning="x" + INVOKE),
    case("xml", "<thinking>x</thinking>a" + INVOKE, [WEATHER], content="a", reasoning="x"),
    case(
        "xml", '<function_calls><invoke name=""></invoke></function_calls>', incomplete=[broken(None, "missing_name")]
    ),
    case("xml", "<function_calls><invoke></invoke></function_calls>", incomplete=[broken(None, "missing_name")]),
    case(
        "xml",
        '<invoke name="search_docs"><parameter name="query">x</parameter><parameter name="limit"> 5 </parameter><parameter name="filters">{"a":1}</parameter><parameter name="zz">7</parameter></invoke>',
        [{"name": "search_docs", "arguments": {"query": "x", "limit": 5, "filters": {"a": 1}, "zz": "7"}}],
    ),
    case("antml", f'<{A}invoke name="get_time"></{A}invoke>', [TIME]),
    case("antml", '<invoke name="get_time"></invoke>', content='<invoke name="get_time"></invoke>'),
    case("minimax", INVOKE, content=INVOKE),
    case("minimax", "<minimax:tool_call>" + INVOKE, [WEATHER]),
    case(
        "deepseek_dsml",
        f'<{D}tool_calls><{D}invoke name="search_docs">{{"query":"x","limit":2}}</{D}invoke></{D}tool_calls>',
        [{"name": "search_docs", "arguments": {"query": "x", "limit": 2}}],
    ),
    case(
        "deepseek_dsml",
        f'<{D}tool_calls><{D}invoke name="search_docs"><{D}parameter name="limit">2</{D}parameter></{D}invoke></{D}tool_calls>',
        [{"name": "search_docs", "arguments": {"limit": 2}}],
    ),
    case(
        "deepseek_dsml",
        f'<{D}tool_calls><{D}invoke name="search_docs"><{D}parameter name="limit" string="false">2,</{D}parameter></{D}invoke></{D}tool_calls>',
        incomplete=[broken("search_docs", "invalid_json")],
    ),
    case(
        "deepseek_dsml",
        f'<{D}tool_calls><{D}invoke name="search_docs"><{D}parameter name="filters" string="false">{{"a": 1}}</{D}parameter></{D}invoke>',
        [{"name": "search_docs", "arguments": {"filters": {"a": 1}}}],
    ),
    case(
        "deepseek_dsml",
        f'<{D}tool_calls><{D}invoke name="search_docs">{{"query":"x"',
        incomplete=[broken("search_docs", "truncated")],
    ),
    case(
        "deepseek_dsml",
        f'<{D}tool_calls><{D}invoke name="search_docs">{{"query":"x"}}',
        incomplete=[broken("search_docs", "truncated")],
    ),
    case(
        "qwen3_coder",
        "<tool_call>\n" + QWEN + "\n</tool_call></tool_call>\nx",
        [],
        calls_not_alone("get_weather"),
        content="x",
    ),
    case("qwen3_coder", QWEN + "\ndone", [], calls_not_alone("get_weather"), content="done"),
    case("qwen3_coder", "<tool_call>" + WEATHER_JSON + "</tool_call>", [WEATHER]),
    case(
        "qwen3_coder",
        "<tool_call>\n<function=foo>\n</function></tool_call>",
        incomplete=[broken("foo", "unknown_tool")],
    ),
    case("qwen3_coder", "<tool_call>", incomplete=[broken(None, "truncated")]),
    case("qwen3_coder", "<tool_call>\n<func", incomplete=[broken(None, "truncated")]),
    case("qwen3_coder", "<tool_call>\n<function=get_w", incomplete=[broken(None, "truncated")]),
    case("qwen3_coder", "<tool_call>" + QWEN + QWEN + "</tool_call>", [WEATHER, WEATHER]),
    case(
        "qwen3_coder",
        "<tool_call>```json\n" + WEATHER_JSON + "\n```</tool_call>",
        [WEATHER],
        warnings=["arguments_repaired"],
    ),
    case("glm45", "a" + GLM + GLM + "\nb", [], calls_not_alone("get_weather", "get_weather"), content="a b"),
    case("glm45", "<tool_call>get_we", incomplete=[broken(None, "truncated")]),
    case("glm45", "<tool_call>get_weather junk</tool_call>", incomplete=[broken("get_weather", "invalid_markup")]),
    case(
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value></tool_call></arg_value></tool_call>",
        [{"name": "get_weather", "arguments": {"city": "</tool_call>"}}],
    ),
    case(
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key></tool_call>",
        incomplete=[broken("get_weather", "invalid_markup")],
    ),
    case(
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>A</arg_value><arg_key>city</arg_key><arg_value>A</arg_value></tool_call>",
        incomplete=[broken("get_weather", "invalid_markup")],
    ),
    case("hermes", "<tool_call>[" + WEATHER_JSON + "," + TIME_JSON + "]</tool_call>", [WEATHER, TIME]),
    *(each for format in LISTS for each in list_cases(format)),
    case(
        "hermes",
        "<tool_call>```json\n" + WEATHER_JSON + "\n```\n</tool_call>",
        [WEATHER],
        warnings=["arguments_repaired"],
    ),
    case(
        "hermes",
        "<tool_call>" + WEATHER_JSON[:-1] + "</tool_call> after",
        incomplete=[broken("get_weather", "truncated")],
        content="after",
    ),
    case("hermes", "<tool_call>" + WEATHER_JSON[:-1] + "  ", incomplete=[broken("get_weather", "truncated")]),
    case("hermes", "<tool_call>", incomplete=[broken(None, "truncated")]),
    case("hermes", '<tool_call>{"name": "get_time"}</tool_call>', [TIME]),
    case("hermes", '<tool_call>{"name": "get_time", "arguments": null}</tool_call>', [TIME]),
    case("hermes", '<tool_call>{"name": "get_time", "parameters": {}}</tool_call>', [TIME]),
    case("hermes", '<tool_call>{"arguments": {}}</tool_call>', incomplete=[broken(None, "missing_name")]),
    case("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>', incomplete=[broken(None, "missing_name")]),
    case(
        "hermes",
        '<tool_call>{"name": "get_time", "arguments": []}</tool_call>',
        incomplete=[broken("get_time", "not_an_object")],
    ),
    case(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "A", "city": "B"}}</tool_call>',
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case(
        "hermes",
        '<tool_call>{"name": "get_weather", "name": "get_time", "arguments": {"city": "A"}}</tool_call>',
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": NaN}}</tool_call>',
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case("hermes", '<tool_call>{"name": "nope", "arguments": {"city": "x', incomplete=[broken("nope", "unknown_tool")]),
    case(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "A"},}</tool_call>',
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case("hermes", "<tool_call>" + WEATHER_JSON + "</tool_ca", [WEATHER]),
    case(
        "hermes",
        "a <tool_call>" + WEATHER_JSON + " junk</tool_call>\nb",
        incomplete=[broken("get_weather", "invalid_json")],
        content="a b",
    ),
    case(
        "hermes",
        "<tool_call>[" + WEATHER_JSON + ', {"name": "get_time", "argu',
        [WEATHER],
        [broken("get_time", "truncated")],
    ),
    case("hermes", "<tool_call>[" + WEATHER_JSON + ', {"nam', [WEATHER], [broken(None, "truncated")]),
    case(
        "hermes",
        "<tool_call>[" + WEATHER_JSON + ", {'name': 'x'}]</tool_call>",
        [WEATHER],
        [broken(None, "invalid_json")],
    ),
    case(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "\\ud83d"}}</tool_call>',
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case("hermes", '<tool_call>{"na\\u006de": "get_weather", "arguments": {"city": "A"}}</tool_call>', [WEATHER]),
    case(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "C:\\x"}}</tool_call>',
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case("hermes", "<think>a</think>\nb<think>c</think>d", content="bd", reasoning="ac"),
    case("granite", "x<|tool_call|>[" + WEATHER_JSON + "]</tool_call>\nbye", [WEATHER], content="x bye"),
    case("granite", "<tool_call>" + WEATHER_JSON, [WEATHER]),
    case("granite", "<|tool_call|>[" + WEATHER_JSON + "]\nok", [WEATHER], content="ok"),
    case(
        "phi4",
        "hi functools[" + WEATHER_JSON + "," + TIME_JSON + "]\nx",
        [],
        calls_not_alone("get_weather", "get_time"),
        content="hi x",
    ),
    case("phi4", "functools[" + WEATHER_JSON + ', {"name": "get_time"', [WEATHER], [broken("get_time", "truncated")]),
    case("phi4", "functools[", incomplete=[broken(None, "truncated")]),
    case("mistral", '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city":"A"}', [{**WEATHER, "id": "abc123def"}]),
    case(
        "mistral",
        "[THINK]hm[/THINK]ok[TOOL_CALLS]get_w",
        incomplete=[broken(None, "truncated")],
        content="ok",
        reasoning="hm",
    ),
    case("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city":"A"}}', incomplete=[broken("get_weather", "invalid_json")]),
    case("mistral", "[TOOL_CALLS] [" + WEATHER_JSON + "]</s>", [WEATHER]),
    case("mistral", "a </s> b</s>", content="a </s> b"),
    case("mistral", "[TOOL_CALLS]", incomplete=[broken(None, "truncated")]),
    case("mistral", "[TOOL_CALLS]get_weather[ARGS]", incomplete=[broken("get_weather", "truncated")]),
    case(
        "deepseek_v3", ALL_BEGIN + BEGIN + "function" + SEPARATOR + 'get_weather\n```json\n{"city":"A"}\n```', [WEATHER]
    ),
    case(
        "deepseek_v3",
        ALL_BEGIN + BEGIN + "function" + SEPARATOR + 'get_weather\n```json\n{"city":"A"}\n``'[:-1],
        [WEATHER],
    ),
    case("deepseek_v3", ALL_BEGIN + BEGIN + "function" + SEPARATOR + "get_wea", incomplete=[broken(None, "truncated")]),
    case("deepseek_v3", ALL_BEGIN, incomplete=[broken(None, "truncated")]),
    case(
        "deepseek_v3",
        ALL_BEGIN + BEGIN + "function" + SEPARATOR + 'get_weather\n```json\n{"city":"A"}\n``` x' + END + ALL_END,
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case(
        "deepseek_v31",
        "a"
        + ALL_BEGIN
        + BEGIN
        + "get_time"
        + SEPARATOR
        + "{}"
        + END
        + BEGIN
        + "nope"
        + SEPARATOR
        + "{}"
        + END
        + ALL_END
        + "<｜end▁of▁sentence｜>",
        [TIME],
        [broken("nope", "unknown_tool")],
        content="a",
    ),
    case(
        "kimi_k2",
        KIMI + "functions.get_time:3" + KIMI_ARGUMENTS + "{}" + KIMI_END,
        [{**TIME, "id": "functions.get_time:3"}],
    ),
    case("kimi_k2", KIMI + "get_time:0" + KIMI_ARGUMENTS + "{}", [{**TIME, "id": "get_time:0"}]),
    case("kimi_k2", "<|tool_calls_section_begin|>", incomplete=[broken(None, "truncated")]),
    case("kimi_k2", KIMI + "functions.get", incomplete=[broken(None, "truncated")]),
    case(
        "kimi_k2",
        KIMI + "functions.get_weather:0" + KIMI_ARGUMENTS + '{"city": "A"} x' + KIMI_END + "y",
        incomplete=[broken("get_weather", "invalid_json")],
        content="y",
    ),
    case(
        "functionary_v32",
        'all\nhello >>> you\n>>>get_weather\n{"city":"A"}\n>>>get_time\n{}',
        [WEATHER, TIME],
        content="hello >>> you",
    ),
    case("functionary_v32", "get_time\n{}", [TIME]),
    case("functionary_v32", ">>>nope\n{}", incomplete=[broken("nope", "unknown_tool")]),
    case("functionary_v32", "Hello there\nall", content="Hello there all"),
    case("functionary_v32", '>>>get_weather\n{"city', incomplete=[broken("get_weather", "truncated")]),
    case("functionary_v32", ">>>get_wea", incomplete=[broken(None, "truncated")]),
    case(
        "functionary_v31",
        'a <function=get_weather>{"city":"A"}</function>\nb',
        [],
        calls_not_alone("get_weather"),
        content="a b",
    ),
    case("functionary_v31", '<function=get_weather>{"city":"A"}', [WEATHER]),
    case("functionary_v31", "<function=get_time></function>", [TIME]),
    case("functionary_v31", "a <function=get", content="a <function=get"),
    case(
        "command_r",
        '<|START_ACTION|>[{"tool_call_id":"0","tool_name":"directly_answer","parameters":{}}]<|END_ACTION|><|START_RESPONSE|>Hi<|END_RESPONSE|>',
        content="Hi",
    ),
    case(
        "command_r",
        '<|START_ACTION|>[{"tool_call_id":"0","tool_name":"get_time","parameters":{}},{"tool_call_id":"1","tool_name":"get_we',
        [TIME],
        [broken(None, "truncated")],
    ),
    case("harmony", HARMONY + "<|call|>", [WEATHER]),
    case("harmony", HARMONY[len("<|start|>assistant") :], [WEATHER]),
    case("harmony", ' to=functions.get_weather<|channel|>commentary json<|message|>{"city":"A"}', [WEATHER]),
    case(
        "harmony",
        '<|start|>assistant to=functions.get_weather<|channel|>commentary<|message|>{"city":"A"}<|call|>'
        + HARMONY
        + "<|call|>",
        [WEATHER, WEATHER],
    ),
    case(
        "harmony",
        'commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"A',
        incomplete=[broken("get_weather", "truncated")],
    ),
    case("harmony", "Hello, plain.", content="Hello, plain."),
    case("harmony", "final answer is 5", content="final answer is 5"),
    case("harmony", "<|channel|>commentary to=functions.get_w", incomplete=[broken(None, "truncated")]),
    case("harmony", HARMONY + " x<|call|>", incomplete=[broken("get_weather", "invalid_json")]),
    case(
        "harmony",
        "<|channel|>analysis<|message|>a " + WEATHER_JSON + "<|end|><|channel|>final<|message|>b",
        content="b",
        reasoning="a " + WEATHER_JSON,
    ),
    case("gemma4", GEMMA + "<tool_call|>" + GEMMA, [WEATHER, WEATHER]),
    case("gemma4", GEMMA[:-1], incomplete=[broken("get_weather", "truncated")]),
    case(
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>A<|"|>,city:<|"|>B<|"|>}<tool_call|>',
        incomplete=[broken("get_weather", "invalid_markup")],
    ),
    case("gemma4", "<|tool_call>call:get_ti", incomplete=[broken(None, "truncated")]),
    case("gemma4", "<|tool_call>call:get_time{}<tool_call|>\nok", [TIME], content="ok"),
    case(
        "gemma4",
        '<|tool_call>call:search_docs{query:<|"|>}{<|"|>,limit:3,filters:{a:[1,-2.5,null,{}]}}<tool_call|>',
        [{"name": "search_docs", "arguments": {"query": "}{", "limit": 3, "filters": {"a": [1, -2.5, None, {}]}}}],
    ),
    case("llama3_json", "<|python_tag|>" + LLAMA_JSON + "<|eot_id|>", [WEATHER]),
    case("llama3_json", "hi<|eot_id|>", content="hi"),
    case("pythonic", '[get_weather(city="A"), get_time()]', [WEATHER, TIME]),
    case("pythonic", '<|python_start|>[get_weather(city="A")]<|python_end|>', [WEATHER]),
    case("pythonic", "Sure <|tool_call_start|>[get_time()]<|tool_call_end|>\nok", [TIME], content="Sure ok"),
    case("pythonic", "Sure [get_time()]", content="Sure [get_time()]"),
    case("pythonic", "[get_time()] ok", content="[get_time()] ok"),
    case("pythonic", "[nope()]", content="[nope()]"),
    case("pythonic", "[get_time(), nope()]", content="[get_time(), nope()]"),
    case("pythonic", '[get_time(), get_weather(city="A', [TIME], [broken("get_weather", "truncated")]),
    case("pythonic", "[get_time(), get_we", [TIME], [broken(None, "truncated")]),
    case("pythonic", "[get_time(", incomplete=[broken("get_time", "truncated")]),
    case("pythonic", "[get_we", content="[get_we"),
    case("pythonic", "[get_time()", [TIME]),
    case("pythonic", "[get_time(), ", [TIME]),
    case(
        "pythonic",
        "[search_docs(query='''a\n\"b\"''', limit=-3, filters={'a': [1, 2.5, None, True, (1, 2)], \"b\": {}})]",
        [
            {
                "name": "search_docs",
                "arguments": {"query": 'a\n"b"', "limit": -3, "filters": {"a": [1, 2.5, None, True, [1, 2]], "b": {}}},
            }
        ],
    ),
    case("pythonic", "[get_weather(city=foo())]", incomplete=[broken("get_weather", "invalid_markup")]),
    case("pythonic", "[get_weather(city=x), get_time()]", [TIME], [broken("get_weather", "invalid_markup")]),
    case("pythonic", "<think>h</think>[get_time()]", [TIME], reasoning="h"),
    case("pythonic", '[get_weather(city="A", city="B")]', incomplete=[broken("get_weather", "invalid_markup")]),
    case(
        "pythonic",
        "[get_weather(city='a\\n\\x41\\u00e9\\'')]",
        [{"name": "get_weather", "arguments": {"city": "a\nAé'"}}],
    ),
    case("pythonic", '[get_weather(city="A" "B")]', [{"name": "get_weather", "arguments": {"city": "AB"}}]),
    case("pythonic", "\n [get_time()] \n", [TIME]),
    case("pythonic", "[]", content="[]"),
    case(
        "react",
        'Thought: a\nb\nAction: get_weather\nAction Input: {"city": "A"}\nObservation: x',
        [WEATHER],
        reasoning="a b",
    ),
    case("react", "Just an answer.", content="Just an answer."),
    case(
        "react",
        "Thought: x\nFinal Answer: a\nAction: get_time\nAction Input: {}",
        content="a Action: get_time Action Input: {}",
        reasoning="x",
    ),
    case("react", "Action: get_time\nAction Input:\nObservation: x", [TIME]),
    case("react", 'Action: get_weather\nAction Input: {"city": "A', incomplete=[broken("get_weather", "truncated")]),
    case("react", "Action: get_weather\n", incomplete=[broken("get_weather", "truncated")]),
    case("react", "Action: get_wea", incomplete=[broken(None, "truncated")]),
    case("react", "Action: nope\nAction Input: {}", incomplete=[broken("nope", "unknown_tool")]),
    case("react", "Action: get_weather\nAction Input: [1]\n", incomplete=[broken("get_weather", "invalid_json")]),
    case(
        "react",
        'Action: get_weather\nAction Input: {"city": "A"} trailing\n',
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case(
        "react",
        'Action: get_weather\nAction Input: "{\\"city\\": \\"A\\"}"\n',
        [WEATHER],
        warnings=["arguments_repaired"],
    ),
    case(
        "react",
        "Action: get_weather\nAction Input: {'city': 'A'}\nObservation: y",
        incomplete=[broken("get_weather", "invalid_json")],
    ),
    case(
        "react",
        'Action: get_weather\nAction Input: {"city": "A"\nObservation: y',
        incomplete=[broken("get_weather", "truncated")],
    ),
    case(
        "react",
        'Hi\n\nAction: get_weather\n\nAction Input:\n```\n{"city": "A"}\n```\n\nThought: no',
        [WEATHER],
        content="Hi",
    ),
    case(
        "react",
        "I am here.\n</think>\nAction: get_time\nAction Input: {}",
        [TIME],
        reasoning="I am here.",
    ),
    case("react", "Action: get_weather\nAction Input: 42", incomplete=[broken("get_weather", "invalid_json")]),
    case("functionary_v32", "<think>h</think>\nget_time\n{}", [TIME], reasoning="h"),
    case("functionary_v32", "h</think>\nget_time\n{}", [TIME], reasoning="h"),
    case("functionary_v32", "a\n>>> get_time\n{}", content="a >>> get_time {}"),
    case(
        "kimi_k2", KIMI + "functions.:0" + KIMI_ARGUMENTS + "{}" + KIMI_END, incomplete=[broken(None, "missing_name")]
    ),
    case("hermes", '<tool_call>{"name": " ", "arguments": {}}</tool_call>', incomplete=[broken(None, "missing_name")]),
    case("hermes", "<tool_call>42</tool_call>", incomplete=[broken(None, "missing_name")]),
    case("hermes", "<tool_call>[]</tool_call>ok", content="ok"),
    case("hermes", "<tool_call></tool_call>ok", incomplete=[broken(None, "truncated")], content="ok"),
    case("hermes", "<tool_call>call me</tool_call>ok", incomplete=[broken(None, "invalid_json")], content="ok"),
    case(
        "hermes",
        '<tool_call>{"name": "get_time", "arguments": {}, "parameters": {"a": 1}}</tool_call>',
        incomplete=[broken("get_time", "invalid_json")],
    ),
    case("minicpm5", '<functionname="get_weather"><paramĠname="city">A</param></function>', [WEATHER]),
    case("minicpm5", "The <functions> and <parameters>.", content="The <functions> and <parameters>."),
    case(
        "minicpm5",
        '<function name="get_weather"><param name="city">A</function>',
        incomplete=[broken("get_weather", "truncated")],
    ),
    case(
        "kimi_k3",
        '<|open|>call tool="search_docs" index="1"<|sep|><|open|>argument key="query" type="string"<|sep|>&quot;<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        [{"name": "search_docs", "arguments": {"query": "&quot;"}}],
    ),
    case(
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="search_docs" index="1"<|sep|><|open|>argument key="limit" type="number"<|sep|>'
        "five<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        incomplete=[broken("search_docs", "invalid_json")],
    ),
    case(
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="a&amp;b" index="1"<|sep|><|close|>call<|sep|>',
        incomplete=[broken("a&b", "unknown_tool")],
    ),
    case(
        "step3",
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_time"></steptml:invoke><｜tool_call_end｜>',
        [TIME],
    ),
    case(
        "step3",
        '<steptml:invoke name="get_time"/><｜tool_call_end｜><｜tool_calls_end｜>\nDone.',
        [TIME],
        content="Done.",
    ),
    case(
        "inkling",
        '<|content_thinking|>now<|content_invoke_tool_json|>{"name":"get_time","args":{}}<|end_message|>',
        [TIME],
        reasoning="now",
    ),
    case("inkling", "<|message_model|>assistant speaking", content="assistant speaking"),
    case(
        "hermes",
        "<tool_call>" + TIME_JSON + "</tool_call>\n</tool_call>\nDone.",
        [],
        calls_not_alone("get_time"),
        content="Done.",
    ),
    case("glm45", "<tool_call>get_time</tool_call></tool_call>", [TIME]),
    case("longcat", "There.</longcat_tool_call>", content="There."),
    case(
        "kimi_k2",
        "a<|tool_calls_section_begin|>b<|tool_call_end|><|tool_calls_section_end|>\nc",
        incomplete=[broken(None, "invalid_markup")],
        content="a c",
    ),
    case(
        "deepseek_v31",
        ALL_BEGIN + "get_time" + SEPARATOR + "{}" + ALL_END,
        incomplete=[broken(None, "invalid_markup")],
    ),
    case("tool_calls", "<tool_calls>[]</tool_calls>", content=""),
    case("tool_calls", "<tool_calls>" + TIME_JSON + " x</tool_calls>", incomplete=[broken("get_time", "invalid_json")]),
    case("granite_20b_fc", "<function_call> [" + TIME_JSON + "]", incomplete=[broken(None, "invalid_json")]),
    case(
        "apertus", '<|tools_prefix|>[{"get_time": 5}]<|tools_suffix|>', incomplete=[broken("get_time", "not_an_object")]
    ),
    case(
        "apertus",
        '<|tools_prefix|>[{"get_time": {}, "get_weather": {"city": "A"}}]<|tools_suffix|>',
        incomplete=[broken(None, "missing_name")],
    ),
    case("command_r_plus", "Action: look\nAction:\n", content="Action: look Action:"),
    case("command_r_plus", 'Action: ```json\n[{"tool_name": "get_ti', incomplete=[broken(None, "truncated")]),
    case("glm4", 'Sure.\nget_weather\n{"city": "A"}\nDone.', [], calls_not_alone("get_weather"), content="Sure. Done."),
    case("glm4", 'get_weather\n{"city": "A', incomplete=[broken("get_weather", "truncated")]),
    case("glm4", 'say get_weather\n{"city": "A"}', content='say get_weather {"city": "A"}'),
    case(
        "minimax_m3",
        M3 + "<tool_call>" + M3 + '<invoke name="search_docs">' + M3 + "<query>a" + M3 + "</query>" + M3 + "<query>b",
        incomplete=[broken("search_docs", "truncated")],
    ),
    case(
        "minimax_m3",
        M3 + "<tool_call>" + M3 + '<invoke name="get_time">x' + M3 + "</invoke>" + M3 + "</tool_call>",
        incomplete=[broken("get_time", "invalid_markup")],
    ),
    case(
        "muse",
        " to=get_time<|message|>nothing<|eom|>",
        incomplete=[broken("get_time", "invalid_markup")],
    ),
    case("muse", " to=get_time<|message|><atem:function_calls><atem:invoke na", incomplete=[broken(None, "truncated")]),
    case("seed_oss", "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call></seed:tool_call>", [TIME]),
    case("functiongemma", "<start_function_call>call:get_time{}<end_function_call>", [TIME]),
    case("olmo3", "<function_calls>get_time(), nope(a=1)</function_calls>", content="get_time(), nope(a=1)"),
    case("pythonic", "<|tool_call_start|>[{'name'", incomplete=[broken(None, "invalid_json")]),
    case(
        "hyperclovax",
        '<tool_call>get_weather<arg_key>city</arg_key><arg_value>"A\\n"</arg_value></tool_call>',
        [{"name": "get_weather", "arguments": {"city": "A\n"}}],
    ),
    case(
        "deepseek_dsml",
        '<｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="input" string="true">{"city": "A"}</｜DSML｜parameter></｜DSML｜invoke>',
        [WEATHER],
        warnings=["arguments_repaired"],
    ),
    case(
        "solar",
        "<|think|>hm<|end|><|begin|>assistant<|content|>Look.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>c1"
        '<|tool_call:name|>get_weather<|tool_call:args|>{"city": "A"}<|tool_call:end|><|calls|>',
        [{**WEATHER, "id": "c1"}],
        content="Look.",
        reasoning="hm",
    ),
    case("solar", "<|tool_call:begin|>c1<|tool_call:name|>get_wea", incomplete=[broken(None, "truncated")]),
    case(
        "solar",
        '<|tool_call:begin|>c1<|tool_call:name|>get_weather<|tool_call:args|>{"city": "A',
        incomplete=[broken("get_weather", "truncated")],
    ),
    case(
        "hunyuan",
        "<think:opensource>hm</think:opensource><tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>A</arg_value:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        [WEATHER],
        reasoning="hm",
    ),
    case(
        "hyperclovax",
        "Sure.<|im_end|>\n<|im_start|>assistant -> tool/function_call\n[" + TIME_JSON + "]<|im_end|>",
        [TIME],
        content="Sure.",
    ),
    *bare_cases("llama3_json"),
    *bare_cases("litellm_json"),
]


@batched(("data", "text", "only"), CASES)
def test_the_rules_hold_for_the_text_and_for_each_of_its_characters(
    data: dict[str, Any], text: str, only: Modes
) -> None:
    if only != "streamed":
        assert judged(data, "text", text) == []
    if only != "whole":
        assert judged(data, "text_chunks", [text]) == []
        assert judged(data, "text_chunks", list(text)) == []
