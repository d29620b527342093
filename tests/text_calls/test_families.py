import pytest
from msgspec.structs import replace

from callgate.conversation.events import CallDelta, CallWritten, Finished, ModelEvent, TextDelta
from callgate.text_calls.families import (
    FALLBACK,
    control_request,
    format_for,
    judge_probe,
    probe_request,
    tool_calling_for,
)
from callgate.text_calls.prompts import FORMATS
from tests.text_calls.reading import batched


@batched(
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
        ("CohereLabs/c4ai-command-r-plus", "command_r_plus"),
        ("CohereLabs/c4ai-command-r7b-12-2024", "command_r"),
        ("CohereLabs/command-a-03-2025", "command_r"),
        ("Qwen/Qwen3.6-27B", "qwen3_coder"),
        ("fireworks/qwen3p8-35b-a3b", "qwen3_coder"),
        ("Qwen/Qwen-7B-Chat", "hermes"),
        ("MiniMaxAI/MiniMax-M3", "minimax_m3"),
        ("MiniMaxAI/MiniMax-M1-80k", "tool_calls"),
        ("deepseek-ai/DeepSeek-V4.1", "deepseek_dsml"),
        ("allenai/Olmo-3-7B-Instruct", "olmo3"),
        ("allenai/OLMo-7B", FALLBACK),
        ("google/functiongemma-270m-it", "functiongemma"),
        ("google/gemma-7b-it", "litellm_json"),
        ("ibm-granite/granite-20b-functioncalling", "granite_20b_fc"),
        ("ibm-granite/granite-4.0-h-small", "hermes"),
        ("ibm-granite/granite-8b-code-instruct", "granite"),
        ("fireworks-ai/llama-3-firefunction-v2", "phi4"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "nemotron"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3_coder"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "llama3_json"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral"),
        ("THUDM/glm-4-9b-chat", "glm4"),
        ("zai-org/GLM-4-32B-0414", "glm4"),
        ("zai-org/GLM-5", "glm45"),
        ("THUDM/chatglm3-6b", FALLBACK),
        ("stepfun-ai/Step-3.5-Flash", "qwen3_coder"),
        ("stepfun-ai/step3", "step3"),
        ("XiaomiMiMo/MiMo-V2-Flash", "qwen3_coder"),
        ("XiaomiMiMo/MiMo-VL-7B-RL", "hermes"),
        ("inclusionAI/Ling-3.0-flash", "glm45"),
        ("poolside/Laguna-XS.2", "glm45"),
        ("moonshotai/Kimi-K3", "kimi_k3"),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", "seed_oss"),
        ("tencent/Hunyuan-A13B-Instruct", "hunyuan"),
        ("tencent/Hy3", "hunyuan"),
        ("openbmb/MiniCPM5-1B", "minicpm5"),
        ("swiss-ai/Apertus-8B-Instruct-2509", "apertus"),
        ("ai-sage/GigaChat3-10B-A1.8B", "gigachat3"),
        ("meituan-longcat/LongCat-Flash-Chat", "longcat"),
        ("rednote-hilab/dots.llm2.inst", "dots"),
        ("upstage/Solar-Open2-100B", "solar"),
        ("naver-hyperclovax/HyperCLOVAX-SEED-Think-32B", "hyperclovax"),
        ("ai21labs/AI21-Jamba-1.5-Mini", "tool_calls"),
        ("internlm/internlm2_5-7b-chat", "internlm2"),
        ("LGAI-EXAONE/EXAONE-4.0-32B", "hermes"),
        ("thinkingmachines/Inkling", "inkling"),
        ("meta/muse-glimmer", "muse"),
        ("baidu/ERNIE-4.5-21B-A3B-Thinking", "ernie45"),
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


@batched("name", ["gpt-4o-mini", "openai/gpt-5", "o3", "claude-sonnet-4-5", "gemini/gemini-2.5-pro"])
def test_models_that_only_their_makers_serve_are_called_natively(name):
    assert tool_calling_for(name, None) == "native"


@batched("name", ["openai/my-finetune", "ollama_chat/qwen3-coder:30b", "openai/gpt-oss-20b", "llama3"])
def test_an_unknown_model_is_probed_even_when_its_family_has_a_format(name):
    assert tool_calling_for(name, None) == "probe"


def test_what_is_known_of_the_very_model_wins_over_its_name():
    assert tool_calling_for("qwen3-coder", supports_native=True) == "native"
    assert tool_calling_for("gpt-4-base", supports_native=False) == FALLBACK


def test_the_probe_offers_its_one_tool_as_real_requests_do():
    ask = probe_request()
    assert len(ask.tools) == 1
    assert ask.tool_choice is None
    assert ask.params["max_tokens"] <= 512


def test_the_control_question_is_the_probe_without_its_tool():
    assert control_request() == replace(probe_request(), tools=())


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
