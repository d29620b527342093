"""Reloads of the config: its source, and the differences between two configs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from callgate.config.authority import Widening
from callgate.config.load import Loaded
from callgate.config.problems import ConfigError, Problem
from callgate.config.schema.whole import Config


class ConfigSource(msgspec.Struct, frozen=True):
    """Reads the config again."""

    read: Callable[[], Loaded]
    files: Callable[[], Sequence[Path]] = tuple
    """The files that are watched for changes."""
    on_read: Callable[[Loaded], None] = lambda loaded: None
    """Called with every config that was read, before it is used, to mask its secrets."""
    on_applied: Callable[[Loaded], None] = lambda loaded: None
    """Called with a config once it is in use."""


class ReloadResult(msgspec.Struct, frozen=True):
    """The result of a reload."""

    changed: tuple[str, ...]
    """The blocks of the config that changed."""
    kept_sources: tuple[str, ...]
    """Tool servers and documents that were not restarted."""
    opened_sources: tuple[str, ...]
    needs_restart: tuple[str, ...]
    widenings: tuple[Widening, ...] = ()
    """What is allowed that was not before."""
    widened: tuple[str, ...] = ()
    """The same in words."""

    def facts(self) -> dict[str, list[str]]:
        return {
            "changed": list(self.changed),
            "kept": list(self.kept_sources),
            "opened": list(self.opened_sources),
            "needs_restart": list(self.needs_restart),
            "widened": list(self.widened),
        }


class Widens(Exception):
    """Raised for a config that allows more than the one in use, where nobody said that this is meant."""

    def __init__(self, widenings: Sequence[Widening]) -> None:
        super().__init__("; ".join(map(str, widenings)))
        self.found = widenings

    def of_file(self, loaded: Loaded) -> "ConfigWidens":
        """Return the error with the places in the file."""
        spots = [loaded.complaint((widening.path, "")).problems[0].spot for widening in self.found]
        return ConfigWidens(
            Problem(spot, widening.name, widening.what) for spot, widening in zip(spots, self.found, strict=True)
        )


def places_of(widenings: Sequence[Widening], loaded: Loaded) -> list[str]:
    """Return where each stands, as file, line and column."""
    return [str(loaded.complaint((widening.path, "")).problems[0].spot) for widening in widenings]


class ConfigWidens(ConfigError):
    """Raised for a file that is refused only because it widens what is allowed."""


def reads_otherwise(source: ConfigSource, config: Config) -> bool:
    try:
        return source.read().config != config
    except ConfigError:
        return True


def changed_blocks(old: Config, new: Config) -> tuple[str, ...]:
    return tuple(name for name in Config.model_fields if getattr(old, name) != getattr(new, name))


OF_THE_SERVER = (
    "host",
    "port",
    "drain_seconds",
    "connections",
    "key_share",
    "header_bytes",
    "header_seconds",
    "body_seconds",
    "idle_seconds",
    "workers",
)
OPENED_ONCE = ("data_dir", "store", "ledger", "runs", "pools", "parsers")
"""Blocks that are opened once, for the life of the process."""
OF_THE_POOLS = ("tool_threads", "child_processes")
"""Limits of pools that are made once."""


def needs_restart(running: Config, next_config: Config) -> tuple[str, ...]:
    """Return the changed settings that take effect only after a restart."""
    of_server = (
        f"server.{setting}"
        for setting in OF_THE_SERVER
        if getattr(running.server, setting) != getattr(next_config.server, setting)
    )
    of_pools = (
        f"limits.{setting}"
        for setting in OF_THE_POOLS
        if getattr(running.limits, setting) != getattr(next_config.limits, setting)
    )
    return (
        *of_server,
        *of_pools,
        *(setting for setting in OPENED_ONCE if getattr(running, setting) != getattr(next_config, setting)),
    )
