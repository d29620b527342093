"""Chooses how each family of models is asked for calls, with `tool_calling: auto`.

litellm's model information comes first, as a value. For an unlisted model the family's own format does not decide, because
most servers read that format themselves and return native calls, while others silently ignore tools. So such a model is
probed once, by the caller.
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
from callgate.policy.litellm_settings import without_settings

NATIVE = "native"
PROBE = "probe"

FALLBACK = "hermes"
"""The format for an unknown family: with marks, so that JSON in prose stays prose, and known to many open models."""


def tool_calling_for(model_name: str, supports_native: bool | None) -> str:
    """Return `native`, a format, or `probe`: ask the model `probe_request()`, then use `judge_probe`.

    `supports_native`: what is known of this model, None if nothing is. litellm returns False for unlisted models, for which
    the caller passes None.
    """
    if supports_native is not None:
        if supports_native:
            return NATIVE
        return format_for(model_name)
    if _HOSTED.search(_bare(model_name)):
        return NATIVE
    return PROBE


def format_for(model_name: str) -> str:
    """Return the text format for a model without native calls."""
    return known_format(model_name) or FALLBACK


def known_format(model_name: str) -> str | None:
    """Return the format of the model's family; None for an unknown family."""
    name = _bare(model_name)
    return next((format for pattern, format in _FAMILIES if re.search(pattern, name)), None)


def _bare(model_name: str) -> str:
    """Return the name in lower case, without provider and organisation, with one kind of separator."""
    last = model_name.lower().rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[\s_:@]+", "-", last)


_HOSTED = re.compile(
    r"^(?:gpt-(?:3\.5|4|5)|chatgpt-|o[134](?:-|$)|(?:\w+\.)*claude-|gemini-|grok-|"
    r"deepseek-(?:chat|reasoner)$|mistral-(?:large|medium|small)-latest$|(?:codestral|ministral)-.*latest$|nova-)"
)
"""Models that are only served by their makers, with native calls."""

_NO_SIZE = r"(?![\d.]*b)"
"""Excludes sizes, such as 7 in `gemma-7b`, for which only a version should match."""

# The first match counts: finetunes and distillates before the families in their names.
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
"""The token limit of a probe, with room for reasoning."""

_PROBE_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"word": {"type": "string", "description": "The word to report."}},
    "required": ["word"],
}


def probe_request() -> ModelRequest:
    """Make the probe: a request that a model with native calls answers with one. A model that ignores tools answers in prose;
    a server that refuses tools with an error.

    The call is not forced, because real requests seldom force one, and a server may support forced calls by grammar and
    refuse or ignore tools that are only offered. A wrong no costs a few tokens, a wrong yes all tools.
    """
    function = {"name": PROBE_TOOL, "description": "Reports one word.", "parameters": _PROBE_PARAMETERS}
    return replace(
        control_request(), tools=(msgspec.Raw(msgspec.json.encode({"type": "function", "function": function})),)
    )


def control_request() -> ModelRequest:
    """Make the same request without tools. A server that refuses this one refuses something else than tools."""
    return ModelRequest(
        messages=({"role": "user", "content": f'Call the tool {PROBE_TOOL} with the word "{PROBE_WORD}".'},),
        params=without_settings({"max_tokens": PROBE_TOKENS, "temperature": 0}),
        stream=False,
    )


def judge_probe(events: Iterable[ModelEvent]) -> bool:
    """True if the answer to `probe_request` has a whole native call of its tool, with any word."""
    building = TurnBuilder(offer={PROBE_TOOL: OfferedTool(PROBE_TOOL, _PROBE_PARAMETERS)}, ids=lambda: "call_probe")
    building.feed([event for event in events if not (isinstance(event, CallWritten) and event.from_text)])
    return any(isinstance(call, ReadyCall) and call.arguments.get("word") for call in building.finish().calls)
