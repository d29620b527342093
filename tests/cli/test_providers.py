"""What the command line says of providers' keys is what litellm looks for."""

import pytest

from callgate.cli.providers import KEY_VARIABLES, OTHER_VARIABLES, missing_key

FOUND_ELSEWHERE = {"anthropic", "cohere", "gemini", "openai", "openrouter"}
"""Providers whose key litellm reads when it asks, and not where it finds their address."""


@pytest.mark.parametrize("provider", sorted(KEY_VARIABLES.keys() - FOUND_ELSEWHERE))
def test_litellm_reads_the_key_of_a_provider_from_the_variable_that_is_named(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import litellm

    for name in (KEY_VARIABLES[provider], *OTHER_VARIABLES.get(provider, ())):
        monkeypatch.delenv(name, raising=False)
    assert missing_key({"model": f"{provider}/x"}) == (provider, KEY_VARIABLES[provider])
    monkeypatch.setenv(KEY_VARIABLES[provider], "sk-of-the-environment")
    assert missing_key({"model": f"{provider}/x"}) is None
    assert litellm.get_llm_provider(model=f"{provider}/x")[2] == "sk-of-the-environment"
