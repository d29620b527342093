"""What the command line says of providers' keys is what litellm looks for."""

import pytest

from callgate.cli.providers import missing_key
from callgate.models.providers import ROWS, Provider
from tests.models.test_providers import UNKNOWN_TO_LITELLM

FOUND_ELSEWHERE = UNKNOWN_TO_LITELLM | {"anthropic", "cohere", "gemini", "openai", "openrouter"}
"""Providers whose key litellm never reads, or when it asks and not where it finds their address."""


NEEDS_KEY = [row for row in ROWS if row.key_variable and not row.key_is_optional and row.name not in FOUND_ELSEWHERE]


@pytest.mark.parametrize("row", NEEDS_KEY, ids=lambda row: row.name)
def test_litellm_reads_the_key_of_a_provider_from_the_variable_that_is_named(
    row: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    import litellm

    for name in (row.key_variable, *row.other_key_variables):
        monkeypatch.delenv(name, raising=False)
    assert missing_key({"model": f"{row.name}/x"}) == (row.name, row.key_variable)
    monkeypatch.setenv(row.key_variable, "sk-of-the-environment")
    assert missing_key({"model": f"{row.name}/x"}) is None
    assert litellm.get_llm_provider(model=f"{row.name}/x")[2] == "sk-of-the-environment"
