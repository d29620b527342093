import pytest
from msgspec.structs import replace

from callgate.conversation.events import CallDelta, CallWritten, Finished, ModelEvent, TextDelta
from callgate.text_calls.families import FALLBACK, control_ask, format_for, judge_probe, probe_ask, tool_calling_for
from callgate.text_calls.prompts import FORMATS


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3_coder"),
        ("ollama_chat/qwen3-coder:30b", "qwen3_coder"),
        ("hosted_vllm/Qwen/Qwen3-8B", "hermes"),
        ("qwen2.5:latest", "hermes"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "hermes"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3_json"),
        ("llama3.2:3b", "llama3_json"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "pythonic"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-R1", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "hermes"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek_v31"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek_dsml"),
        ("moonshotai/Kimi-K2-Instruct", "kimi_k2"),
        ("zai-org/GLM-4.5-Air", "glm45"),
        ("openai/gpt-oss-20b", "harmony"),
        ("ibm-granite/granite-3.3-8b-instruct", "granite"),
        ("microsoft/Phi-4-mini-instruct", "phi4"),
        ("CohereLabs/c4ai-command-r-plus", "command_r"),
        ("meetkai/functionary-small-v3.1", "functionary_v31"),
        ("meetkai/functionary-medium-v3.2", "functionary_v32"),
        ("MiniMaxAI/MiniMax-M2", "minimax"),
        ("google/gemma-3-27b-it", "litellm_json"),
        ("google/gemma-4-9b-it", "gemma4"),
        ("LiquidAI/LFM2-8B", "pythonic"),
        ("somebody/a-model-of-their-own", FALLBACK),
    ],
)
def test_a_model_without_native_calls_is_asked_in_the_format_of_its_family(name, format):
    assert format_for(name) == format
    assert tool_calling_for(name, supports_native=False) == format
    assert format in FORMATS


@pytest.mark.parametrize("name", ["gpt-4o-mini", "openai/gpt-5", "o3", "claude-sonnet-4-5", "gemini/gemini-2.5-pro"])
def test_models_that_only_their_makers_serve_are_called_natively(name):
    assert tool_calling_for(name, None) == "native"


@pytest.mark.parametrize("name", ["openai/my-finetune", "ollama_chat/qwen3-coder:30b", "openai/gpt-oss-20b", "llama3"])
def test_a_model_nobody_knows_is_probed_even_when_its_family_has_a_format(name):
    assert tool_calling_for(name, None) == "probe"


def test_what_is_known_of_the_very_model_wins_over_its_name():
    assert tool_calling_for("qwen3-coder", supports_native=True) == "native"
    assert tool_calling_for("gpt-4-base", supports_native=False) == FALLBACK


def test_the_probe_offers_its_one_tool_as_real_requests_do():
    ask = probe_ask()
    assert len(ask.tools) == 1
    assert ask.tool_choice is None
    assert ask.params["max_tokens"] <= 512


def test_the_control_question_is_the_probe_without_its_tool():
    assert control_ask() == replace(probe_ask(), tools=())


def test_a_whole_native_call_passes_the_probe():
    pieces: list[ModelEvent] = [
        CallDelta(0, "c1", "report_word", '{"wo'),
        CallDelta(0, arguments='rd": "ready"}'),
        Finished("tool_calls"),
    ]
    assert judge_probe(pieces)
    assert judge_probe([CallWritten("report_word", '{"word": "steady"}', "c1"), Finished("stop")])


@pytest.mark.parametrize(
    "events",
    [
        [],
        [TextDelta("I would call report_word with ready."), Finished("stop")],
        [TextDelta('{"name": "report_word", "arguments": {"word": "ready"}}'), Finished("stop")],
        [CallDelta(0, "c1", "report_word", '{"wo'), Finished("length")],
        [CallDelta(0, "c1", "report_word", "{}"), Finished("tool_calls")],
        [CallDelta(0, "c1", "other", '{"word": "ready"}'), Finished("tool_calls")],
        [CallWritten("report_word", {"word": "ready"}, from_text=True), Finished("stop")],
    ],
    ids=["nothing", "prose", "json-as-text", "cut", "no-arguments", "another-tool", "read-from-text"],
)
def test_anything_else_fails_the_probe(events):
    assert not judge_probe(events)
