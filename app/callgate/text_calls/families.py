"""Chooses the way of calling for each family of models, where the configuration says `tool_calling: auto`.

litellm's model information is the first witness: it comes in as a value, because this package knows no litellm. Of a
model it does not know nothing follows from the family's own format: the servers of these models mostly read that
format themselves and answer in native calls, while the same weights behind another template ignore tools altogether,
with status 200. So such a model is probed once. Who asks, and who remembers the verdict, is the caller's business.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.calls.offer import OfferedTool
from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallWritten, ModelEvent
from callgate.conversation.ports import ModelRequest
from callgate.conversation.turn import TurnBuilder

NATIVE = "native"
PROBE = "probe"

FALLBACK = "hermes"
"""For a family that is not known: marked, so that JSON in prose stays prose, and many open models were trained on it."""


def tool_calling_for(model_name: str, supports_native: bool | None) -> str:
    """`native`, a format, or `probe`: ask the model `probe_ask()`, then go by `judge_probe`.

    `supports_native` is what is known of this very model, None where nothing is. litellm's own answer is False for
    every model that its list lacks: the caller distinguishes the two and passes None for those.
    """
    if supports_native is not None:
        return NATIVE if supports_native else format_for(model_name)
    return NATIVE if _HOSTED.search(_bare(model_name)) else PROBE


def format_for(model_name: str) -> str:
    """The format to ask a model for once it is known that it has no native calls."""
    return known_format(model_name) or FALLBACK


def known_format(model_name: str) -> str | None:
    """The format of the model's family; None for a family that is not known."""
    name = _bare(model_name)
    return next((format for pattern, format in _FAMILIES if re.search(pattern, name)), None)


def _bare(model_name: str) -> str:
    """The name in lower case, without provider and organisation, with one kind of separator."""
    last = model_name.lower().rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[\s_:@]+", "-", last)


_HOSTED = re.compile(
    r"^(?:gpt-(?:3\.5|4|5)|chatgpt-|o[134](?:-|$)|(?:\w+\.)*claude-|gemini-|grok-|"
    r"deepseek-(?:chat|reasoner)$|mistral-(?:large|medium|small)-latest$|(?:codestral|ministral)-.*latest$|nova-)"
)
"""Served by their makers alone, always with native calls."""

_NO_SIZE = r"(?![\d.]*b)"
"""A number that is a version and not the size of a model, as 7 is in `gemma-7b`."""

# The first that matches counts: finetunes and distillates before the family they are named after.
_FAMILIES = (
    (r"hermes", "hermes"),
    (r"functionary.*(?:v?3[.-]1)", "functionary_v31"),
    (r"functionary", "functionary_v32"),
    (r"firefunction", "phi4"),
    (r"xlam", "litellm_json"),
    (r"deepseek-r1-distill|r1-distill", "hermes"),
    (r"deepseek-(?:v?3[.p-]2|v[4-9])", "deepseek_dsml"),
    (r"deepseek-v?3[.p-]1", "deepseek_v31"),
    (r"deepseek-(?:v?3|r1)", "deepseek_v3"),
    (r"gpt-?oss", "harmony"),
    (r"nemotron-(?:v?[3-9])" + _NO_SIZE, "qwen3_coder"),
    (r"nemotron-70b", "llama3_json"),
    (r"nemotron", "nemotron"),
    (r"qwen-?3-(?:coder|next-coder)|qwen-?(?:3(?:[.p]|-(?=\d-))[5-9]|[4-9])" + _NO_SIZE, "qwen3_coder"),
    (r"step-?3[.p-][5-9]|mimo-?v[2-9]", "qwen3_coder"),
    (r"hyperclova", "hyperclovax"),
    (r"kimi-?k[3-9]", "kimi_k3"),
    (r"kimi", "kimi_k2"),
    (r"(?<!chat)glm-?4-(?:\d+b|0414|flash|plus|air)|glm-?z1", "glm4"),
    (r"(?<!chat)glm|laguna|poolside|\b(?:ling|ring)-?[3-9]" + _NO_SIZE, "glm45"),
    (r"minimax-?m[3-9]", "minimax_m3"),
    (r"minimax-?m2", "minimax"),
    (r"minimax|jamba", "tool_calls"),
    (r"apriel", "apriel"),
    (r"granite-20b", "granite_20b_fc"),
    (r"granite-?[4-9]" + _NO_SIZE, "hermes"),
    (r"granite", "granite"),
    (r"phi-?4", "phi4"),
    (r"command-?r-?plus|command-?r-v01|command-?r(?:-08-2024|-35b)?$", "command_r_plus"),
    (r"command|c4ai", "command_r"),
    (r"mistral|mixtral|ministral|codestral|devstral|magistral|pixtral", "mistral"),
    (r"olmo-?[3-9]" + _NO_SIZE, "olmo3"),
    (r"llama-?4", "pythonic"),
    (r"llama-?3", "llama3_json"),
    (r"lfm-?2", "pythonic"),
    (r"functiongemma", "functiongemma"),
    (r"gemma-?[4-9]" + _NO_SIZE, "gemma4"),
    (r"gemma", "litellm_json"),
    (r"seed-?oss", "seed_oss"),
    (r"hunyuan|^hy-?[3-9]" + _NO_SIZE, "hunyuan"),
    (r"minicpm-?[5-9]" + _NO_SIZE, "minicpm5"),
    (r"apertus", "apertus"),
    (r"gigachat", "gigachat3"),
    (r"longcat", "longcat"),
    (r"step-?3", "step3"),
    (r"dots", "dots"),
    (r"solar", "solar"),
    (r"intern(?:lm|-?s1)", "internlm2"),
    (r"inkling", "inkling"),
    (r"muse", "muse"),
    (r"ernie", "ernie45"),
    (r"qwen|qwq|exaone|smollm|reka|mimo|trinity", "hermes"),
)


# The probe ------------------------------------------------------------------------------------------------------------

PROBE_TOOL = "report_word"
PROBE_WORD = "ready"
PROBE_TOKENS = 512
"""Room for a model that thinks before it calls, and an end to one that rambles."""

_PROBE_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"word": {"type": "string", "description": "The word to report."}},
    "required": ["word"],
}


def probe_ask() -> ModelRequest:
    """A question that a model with native calls answers with one. One that ignores tools answers in prose, if at all;
    a server that refuses tools answers with an error, which is a no as well.

    The call is not forced, because real requests seldom force one: a server may well manage a forced call by grammar and
    refuse, or ignore, tools that are only offered. A wrong no costs a few tokens, a wrong yes all tools.
    """
    function = {"name": PROBE_TOOL, "description": "Reports one word.", "parameters": _PROBE_PARAMETERS}
    return replace(control_ask(), tools=(msgspec.Raw(msgspec.json.encode({"type": "function", "function": function})),))


def control_ask() -> ModelRequest:
    """The same question with no tool on offer. Whoever refuses this one refuses something else than tools."""
    return ModelRequest(
        messages=({"role": "user", "content": f'Call the tool {PROBE_TOOL} with the word "{PROBE_WORD}".'},),
        params={"max_tokens": PROBE_TOKENS, "temperature": 0},
        stream=False,
    )


def judge_probe(events: Iterable[ModelEvent]) -> bool:
    """True if the answer to `probe_ask` held a whole native call of its tool. Which word it reports does not matter."""
    building = TurnBuilder({PROBE_TOOL: OfferedTool(PROBE_TOOL, _PROBE_PARAMETERS)}, lambda: "call_probe")
    building.feed([event for event in events if not (isinstance(event, CallWritten) and event.from_text)])
    return any(isinstance(call, ReadyCall) and call.arguments.get("word") for call in building.finish().calls)
