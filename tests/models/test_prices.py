import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from callgate.conversation.prices import FREE, Price
from callgate.models import prices
from callgate.models.prices import CACHE_WRITTEN, CACHED, COMPLETION, PROMPT, SEARCHES, USUAL_CONTEXT, price_of
from tests.harness.process import child_environment


def test_configured_prices_come_before_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.models.prices._list", lambda: pytest.fail("the list was read"))
    said = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    assert price_of({"model": "openai/gpt-4o"}, said) == Price(1e-6, 2e-6, None)
    assert price_of({"model": "openai/gpt-4o", **said}, {}) == Price(1e-6, 2e-6, None)
    assert price_of({"model": "openai/gpt-4o"}, {**said, "cache_read_input_token_cost": 5e-7}) == Price(
        1e-6, 2e-6, 5e-7
    )
    assert price_of({"model": "openai/gpt-4o"}, {**said, "cache_creation_input_token_cost": 2e-6}) == Price(
        1e-6, 2e-6, cache_written=2e-6
    )
    assert price_of({"model": "demo/demo"}, {}) is FREE


def test_litellms_list_knows_models_with_and_without_their_provider() -> None:
    known = price_of({"model": "openai/gpt-4o-mini"}, {})
    assert known is not None
    assert 0 < known.prompt < known.completion
    assert known.cached is not None
    assert known.cached < known.prompt
    assert price_of({"model": "gpt-4o-mini"}, {}) == known
    assert price_of({"model": "openai/my-own-model"}, {}) is None


@pytest.mark.slow
def test_the_list_is_the_one_that_litellm_itself_goes_by() -> None:
    import litellm

    theirs = {
        model: Price(
            said[PROMPT],
            said.get(COMPLETION) or 0.0,
            said.get(CACHED),
            said.get(CACHE_WRITTEN),
            (said.get(SEARCHES) or {}).get(USUAL_CONTEXT),
        )
        for model, said in litellm.model_cost.items()
        if said.get(PROMPT) is not None
    }
    assert {model: price_of({"model": model}, {}) for model in theirs} == theirs


def test_a_price_loads_nothing_of_litellm() -> None:
    code = (
        "import sys; from callgate.conversation.usage import Usage; from callgate.models.prices import price_of;"
        "print(price_of({'model': 'openai/gpt-4o-mini'}, {}).of(Usage.of(10, 1).counts()) > 0, 'litellm' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_environment()
    )
    assert ran.stdout.split() == ["True", "False"]


@pytest.mark.parametrize(
    "content",
    [None, b"{", b'{"openai/gpt-4o": 7}', b'{"a":' * 100_000],
    ids=["gone", "cut", "another shape", "too deep"],
)
def test_a_list_that_cannot_be_read_is_logged_and_nothing_has_a_price(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "litellm").mkdir()
    (tmp_path / "litellm" / "__init__.py").touch()
    if content is not None:
        (tmp_path / "litellm" / prices.LIST).write_bytes(content)
    found = type("Found", (), {"origin": str(tmp_path / "litellm" / "__init__.py")})
    monkeypatch.setattr(prices, "find_spec", lambda name: found)
    monkeypatch.setattr(prices, "_list", prices._list.__wrapped__)
    with capture_logs() as logs:
        assert price_of({"model": "openai/gpt-4o"}, {}) is None
    assert [(each["event"], each["log_level"]) for each in logs] == [("price_list_unreadable", "error")]
