import pytest

from callgate.upstream.prices import costs_of


def test_what_the_operator_says_counts_before_the_list_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.upstream.prices._listed", lambda model: pytest.fail("litellm was asked"))
    said = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    assert costs_of({"model": "openai/gpt-4o"}, said) == (1e-6, 2e-6, None)
    assert costs_of({"model": "openai/gpt-4o", **said}, {}) == (1e-6, 2e-6, None)
    assert costs_of({"model": "openai/gpt-4o"}, {**said, "cache_read_input_token_cost": 5e-7}) == (1e-6, 2e-6, 5e-7)


@pytest.mark.slow
def test_litellms_list_knows_models_with_and_without_their_provider() -> None:
    known = costs_of({"model": "openai/gpt-4o-mini"}, {})
    assert known is not None
    prompt, completion, cached = known
    assert 0 < prompt < completion
    assert cached is not None
    assert cached < prompt
    assert costs_of({"model": "gpt-4o-mini"}, {}) == known


@pytest.mark.slow
def test_a_model_nobody_priced_has_no_price_and_the_demo_costs_nothing() -> None:
    assert costs_of({"model": "openai/my-own-model"}, {}) is None
    assert costs_of({"model": "demo/demo"}, {}) == (0.0, 0.0, None)
