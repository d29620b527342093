"""Which names of providers are known, and what is said of one that is not."""

import pytest

from callgate.models.provider_names import why_unknown
from callgate.models.resolve import ModelConfig


def why(model: str, **more: object) -> str | None:
    return why_unknown(ModelConfig("m", {"model": model, **more}))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("opnai/gpt-5", "no provider is called 'opnai'; did you mean `openai/gpt-5`?"),
        ("claude/claude-sonnet-5", "did you mean `anthropic/claude-sonnet-5`?"),
        ("Google/gemini-3", "did you mean `gemini/gemini-3`?"),
        ("qwqwqw/x", "see https://docs.litellm.ai/docs/providers for their names"),
        ("llama3", "says no provider: write `openai/llama3`, or `ollama/llama3`"),
    ],
)
def test_an_unknown_provider_is_reported_with_a_similar_name(model, said):
    assert said in (why(model) or "")


def test_an_unknown_provider_with_an_api_base_gets_a_hint_how_to_write_it():
    said = why("meta-llama/Llama-4", api_base="http://127.0.0.1:8000/v1")
    assert "at `api_base` write `openai/meta-llama/Llama-4`" in (said or "")


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("gpt-5", {}),
        ("huggingface/a/b", {}),
        ("demo/demo", {}),
        ("*", {}),
        ("openai/*", {}),
        ("any", {"custom_llm_provider": "openai"}),
        ("scope/x", {"api_base": "https://api.groq.com/openai/v1"}),
    ],
)
def test_what_litellm_can_ask_is_known(model, more):
    assert why(model, **more) is None


def test_where_the_operator_vouches_for_the_address_any_name_will_do():
    assert why_unknown(ModelConfig("m", {"model": "x/y", "api_base": "http://127.0.0.1:1/v1"}, lane="direct")) is None
