"""Logs and counts the events of tool servers: connected, lost, descriptions changed."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import structlog

from callgate.telemetry.metrics import Metrics
from callgate.telemetry.outages import Outage

log: Final = structlog.get_logger("callgate.tools")


class ToolServers:
    """Logs and counts the events of tool sources, for the life of the process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._outages: defaultdict[str, Outage] = defaultdict(Outage)
        """By the names of servers."""

    def ready(self, name: str, kind: str) -> None:
        log.info("tool_server_ready", server=name, kind=kind, failures=self._outages[name].over())

    def down(self, name: str, kind: str, error: str) -> None:
        self._metrics.server_failures.of(name).inc()
        if failures := self._outages[name].failed():
            log.warning("tool_server_down", server=name, kind=kind, error=error, failures=failures)

    def holds_back(self, server: str, count: int) -> None:
        """Show how many tools of a server are not on offer until somebody accepts what they say of themselves."""
        self._metrics.tools_held.labels(server).set(count)

    def login(self, server: str, state: str, reason: str, lacking: int, who: Mapping[str, str]) -> None:
        """Log that a login is missing or there again, and show how many are missing. `who`: the key and the user it is of."""
        self._metrics.logins_lacking.labels(server).set(lacking)
        if reason:
            log.warning("mcp_login_lacking", server=server, state=state, reason=reason, **who)
        else:
            log.info("mcp_login_ok", server=server, **who)

    def changed(self, server: str, tool: str) -> None:
        """Log and count a changed description, because models may obey it."""
        self._metrics.tool_changes.of(server).inc()
        log.warning("tool_changed", server=server, tool=tool)
