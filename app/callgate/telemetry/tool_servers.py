"""Logs and counts the events of tool servers: connected, lost, descriptions changed."""

from typing import Final

import structlog

from callgate.telemetry.metrics import Metrics

log: Final = structlog.get_logger("callgate.tools")


class ToolServers:
    """Writes down and counts what happens to sources of tools. One for the life of the process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def ready(self, name: str, kind: str) -> None:
        log.info("tool_server_ready", server=name, kind=kind)

    def down(self, name: str, kind: str, error: str, failures: int) -> None:
        self._metrics.server_failures.of(name).inc()
        log.warning("tool_server_down", server=name, kind=kind, error=error, failures=failures)

    def changed(self, server: str, tool: str) -> None:
        """A tool is not what it was when it was first seen. Its description is text that models obey."""
        self._metrics.tool_changes.of(server).inc()
        log.warning("tool_changed", server=server, tool=tool)
