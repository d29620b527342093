"""What a config with hooks is told, what `check` and `doctor` show of them, and what a reload refuses."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from callgate.application import create_app
from callgate.config.entry_errors import BadEntry
from callgate.config.load import load
from callgate.config.problems import ConfigError
from callgate.config.schema.whole import Config
from callgate.guardrails.building import guardrails_of
from callgate.runtime.reload import Widens
from callgate.runtime.tool_patterns import check_patterns
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.registry import Registry
from tests.harness.configs import make_config
from tests.harness.server import serve

pytestmark = pytest.mark.anyio

MODELS = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}]
CARDS = {"name": "cards", "kind": "patterns", "at": ["answer"], "find": ["cards"]}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing to look for": ({**CARDS, "find": []}, "should look for something"),
    "an unknown shape": ({**CARDS, "find": ["fingerprints"]}, "guardrails"),
    "no limit": ({"name": "s", "kind": "sizes", "at": ["request"]}, "max_bytes"),
    "too much held": ({**CARDS, "hold_characters": 257}, "256"),
    "too little held": ({**CARDS, "hold_characters": 10}, "hold_characters"),
    "a bad expression": ({**CARDS, "own": {"x": "(a"}}, "own.x"),
    "lookaround": ({**CARDS, "own": {"x": "(?=a)"}}, "own.x"),
    "an unknown model": ({**CARDS, "models": ["demoo"]}, "names no model"),
    "a description of one model": ({**CARDS, "at": ["description"], "models": ["demo"]}, "everybody"),
    "no such function": (
        {"name": "f", "kind": "python", "at": ["request"], "function": "no_such_module:check"},
        "no module",
    ),
    "an unknown kind": ({"name": "f", "kind": "vendor", "at": ["request"]}, "kind"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_hook_that_cannot_be_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    entry, words = WRONG[name]
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"model_list": MODELS, "guardrails": [entry]}))
    with pytest.raises((ConfigError, BadEntry), match="guardrails") as refused:
        build(file)
    assert words in str(refused.value)


def build(file: Path) -> None:
    config = load(file).config
    guardrails_of(config, Web, ThreadPool(), lambda judged: None)
    check_patterns(config, Registry())


def test_two_hooks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="another guardrail is called"):
        Config.model_validate({"model_list": MODELS, "guardrails": [CARDS, CARDS]})


async def test_a_reload_that_takes_a_hook_away_is_refused() -> None:
    app = create_app(make_config("http://127.0.0.1:9/v1", guardrails=[CARDS]))
    async with serve(app):
        manager = app.state.manager
        with pytest.raises(Widens, match="guardrails"):
            await manager.apply(make_config("http://127.0.0.1:9/v1"), widen=False)
        await manager.apply(make_config("http://127.0.0.1:9/v1"), widen=True)
        await manager.apply(make_config("http://127.0.0.1:9/v1"), widen=False)
        assert manager.current.guarding is None
