"""Configurations for tests, by the same reading that `config.yaml` gets, only without a file."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from callgate.config.schema.whole import Config
from tests.harness import toolshed


def config_dict(
    upstream_url: str,
    *,
    models: Sequence[str] = ("m",),
    tools: Iterable[str | Mapping[str, Any]] = (),
    lane: str = "direct",
    provider: str = "openai",
    entry: Mapping[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """A configuration with one entry for each model, all at the upstream, and these tools offered to all of them.

    A tool is a name from the toolshed or an entry of `tools` as the file has it. `entry` adds to each entry of
    `model_list`; `sections` are further blocks (`loop={"max_iterations": 2}`), laid over the defaults of tests.
    """
    entries = [tool_entry(tool) if isinstance(tool, str) else dict(tool) for tool in tools]
    shared = {
        "tools": ["*"] if entries else [],
        "lane": lane,
        "tool_calling": "native",
        **(entry or {}),
    }
    return {
        "auth": "off",
        "model_list": [
            {
                "model_name": name,
                "litellm_params": {"model": f"{provider}/{name}", "api_base": upstream_url, "api_key": "sk-upstream"},
                **shared,
            }
            for name in models
        ],
        "tools": entries,
        **sections,
    }


def make_config(upstream_url: str, **options: Any) -> Config:
    """`config_dict`, checked."""
    return Config.model_validate(config_dict(upstream_url, **options))


def tool_entry(name: str) -> dict[str, Any]:
    """The entry of one tool of the toolshed."""
    return {"kind": "python", "function": f"{toolshed.__name__}:{name}", "safety": toolshed.SAFETY[name]}


def as_yaml(config: Mapping[str, Any]) -> str:
    """For tests that start the command, which reads a file."""
    return str(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
