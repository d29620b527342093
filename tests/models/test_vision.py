import pytest

from callgate.models import litellm_model
from callgate.models.resolve import ModelConfig
from callgate.models.vision import by_family, sees_images


def entry(model: str, word: bool | None = None) -> ModelConfig:
    return ModelConfig("m", {"model": model}, sees_images=word)


@pytest.mark.parametrize(
    ("model", "sees"),
    [
        ("openai/gpt-4o", True),
        ("openai/gpt-5-mini", True),
        ("openai/gpt-3.5-turbo", False),
        ("openai/o3-mini", False),
        ("openai/o4-mini", True),
        ("anthropic/claude-sonnet-4-5", True),
        ("bedrock/eu.anthropic.claude-3-haiku-20240307-v1:0", True),
        ("openrouter/anthropic/claude-2.1", False),
        ("gemini/gemini-2.5-flash", True),
        ("hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", True),
        ("hosted_vllm/Qwen/Qwen3-32B", False),
        ("ollama_chat/llava:13b", True),
        ("ollama_chat/gemma3:4b", True),
        ("ollama_chat/gemma2", False),
        ("ollama_chat/llama3.2-vision:11b", True),
        ("groq/llama-3.3-70b-versatile", False),
        ("groq/meta-llama/llama-4-scout-17b-16e-instruct", True),
        ("deepseek/deepseek-chat", False),
        ("demo/demo", False),
        ("openai/my-own-model", False),
    ],
)
def test_the_family_is_known_by_its_name(model, sees):
    assert by_family(model) is sees


def test_the_config_decides_before_any_list(monkeypatch):
    monkeypatch.setattr(litellm_model, "listed", lambda model, word: pytest.fail("litellm was asked"))
    assert sees_images(entry("openai/my-own-model", word=True))
    assert not sees_images(entry("openai/gpt-4o", word=False))


def test_litellms_list_comes_before_the_family_if_it_has_the_model(monkeypatch):
    said: dict[str, bool | None] = {"openai/my-own-model": True, "openai/gpt-4o": False, "gemini/gemini-3": None}
    monkeypatch.setattr(litellm_model, "listed", lambda model, word: said[model])
    assert sees_images(entry("openai/my-own-model"))
    assert not sees_images(entry("openai/gpt-4o"))
    assert sees_images(entry("gemini/gemini-3"))


def test_litellm_is_not_loaded_for_it(monkeypatch):
    monkeypatch.setattr(litellm_model, "_library", None)
    assert litellm_model.listed("openai/gpt-4o", "supports_vision") is None
