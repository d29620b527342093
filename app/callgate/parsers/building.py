"""Builds the pool of child processes that read for the server."""

from collections.abc import Callable

from callgate.config.schema.whole import Config
from callgate.parsers.pool import ParserLimits, ParserPool


def parsers_of(config: Config, on_failure: Callable[[str, str], None] = lambda kind, reason: None) -> ParserPool:
    """Build the pool; no process is started. `on_failure` gets the kind of a job that failed and the reason."""
    settings = config.parsers
    limits = ParserLimits(settings.processes, settings.seconds, settings.memory_bytes)
    return ParserPool(limits, on_failure)
