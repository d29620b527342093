"""Pools in the config: what cannot work is refused before anything is served."""

from typing import Any

import pytest

from callgate.config.load import load
from callgate.config.problems import ConfigError
from tests.harness.configs import as_yaml, config_dict
from tests.harness.fleet import placed

SHARED = {"ledger": {"url": "postgresql://db/callgate"}, "store": {"redis_url": "redis://redis:6379/0"}}


def loaded_config(**sections: Any) -> Any:
    return load(None, text=as_yaml(config_dict("http://127.0.0.1:9", **sections))).config


def test_a_tool_names_a_pool_that_is_there() -> None:
    config = loaded_config(tools=[placed("add")], pools={"gpu": {"queue_seconds": 5, "fresh_process": "on"}}, **SHARED)
    assert config.tools[0].run_on == "gpu"
    assert (config.pools["gpu"].queue_seconds, config.pools["gpu"].fresh_process) == (5.0, True)


def test_a_pool_that_is_not_there_is_refused_with_a_near_one() -> None:
    with pytest.raises(ConfigError, match=r"no pool of `pools` is called that; did you mean `gpu`"):
        loaded_config(tools=[placed("add", run_on="gpuu")], pools={"gpu": {}}, **SHARED)


@pytest.mark.parametrize(("left_out", "word"), [("ledger", r"ledger\.url"), ("store", r"store\.redis_url")])
def test_pools_without_what_they_need_are_refused(left_out: str, word: str) -> None:
    sections = {name: section for name, section in SHARED.items() if name != left_out}
    with pytest.raises(ConfigError, match=rf"pools.*needs `{word}`"):
        loaded_config(tools=[placed("add")], pools={"gpu": {}}, **sections)
