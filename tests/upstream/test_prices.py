import subprocess
import sys

import pytest

from callgate.conversation.prices import FREE, Price
from callgate.upstream.prices import price_at_hand, price_of
from tests.harness.process import child_environment


def test_what_the_operator_says_counts_before_the_list_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.upstream.prices._listed", lambda model: pytest.fail("litellm was asked"))
    said = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    assert price_of({"model": "openai/gpt-4o"}, said) == Price(1e-6, 2e-6, None)
    assert price_of({"model": "openai/gpt-4o", **said}, {}) == Price(1e-6, 2e-6, None)
    assert price_of({"model": "openai/gpt-4o"}, {**said, "cache_read_input_token_cost": 5e-7}) == Price(
        1e-6, 2e-6, 5e-7
    )


@pytest.mark.slow
def test_litellms_list_knows_models_with_and_without_their_provider() -> None:
    known = price_of({"model": "openai/gpt-4o-mini"}, {})
    assert known is not None
    assert 0 < known.prompt < known.completion
    assert known.cached is not None
    assert known.cached < known.prompt
    assert price_of({"model": "gpt-4o-mini"}, {}) == known


@pytest.mark.slow
def test_a_model_nobody_priced_has_no_price_and_the_demo_costs_nothing() -> None:
    assert price_of({"model": "openai/my-own-model"}, {}) is None
    assert price_of({"model": "demo/demo"}, {}) == FREE


def test_a_price_at_hand_loads_nothing() -> None:
    said = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    code = (
        "import sys; from callgate.upstream.prices import price_at_hand as at_hand;"
        f"print(at_hand({{'model': 'openai/gpt-4o'}}, {{}}), at_hand({{'model': 'openai/x'}}, {said}).of(10, 1),"
        "'litellm' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_environment()
    )
    assert ran.stdout.split() == ["None", "12000", "False"]


def test_a_price_at_hand_is_what_the_operator_says() -> None:
    assert price_at_hand({"model": "demo/demo"}, {}) is FREE
    assert price_at_hand({"model": "x/y"}, {"input_cost_per_token": 1.0}) == Price(1.0)
