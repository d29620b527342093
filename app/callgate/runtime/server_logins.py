"""The logins to MCP servers, which outlive any one runtime. What they need is imported with the first server that has `oauth`."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from callgate.config.schema.whole import Config
from callgate.records.ports import RunRecorder
from callgate.state.sealing import Sealer
from callgate.telemetry.tool_servers import ToolServers

if TYPE_CHECKING:
    from callgate.state.database import Database
    from callgate.tools.kinds.http.client import Web
    from callgate.tools.kinds.mcp.logins import StateChange
    from callgate.tools.kinds.mcp.oauth.service import OAuthLogins


class ServerLogins:
    """Makes the logins when they are needed, and tells of their states."""

    def __init__(
        self,
        config: Config,
        sealer: Sealer,
        database: "Database | None",
        web: "Callable[[], Web]",
        servers: ToolServers,
        recorder: RunRecorder,
    ) -> None:
        """`database`: that of the ledger, if there is one."""
        self._config = config
        self._sealer = sealer
        self._database = database
        self._web = web
        self._servers = servers
        self._recorder = recorder
        self.made: OAuthLogins | None = None
        """The logins, once any server has `oauth`."""
        self.on_login: Callable[[str], None] = lambda server: None
        """Called with the name of a server that somebody has logged in to."""
        self.on_another: Callable[[str, Hashable], None] = lambda server, identity: None
        """Called with a server, and an identity whose login there is another than before, or is no more."""

    def __call__(self) -> "OAuthLogins":
        """Return the logins, made for the first server that has `oauth`. Raises `ValueError`."""
        if self.made is None:
            from callgate.tools.kinds.mcp.oauth.building import logins_of

            self.made = logins_of(self._config, self._sealer, self._database, self._web, self._report)
            self.made.on_login = self._logged_in
            self.made.on_another = self._is_another
        return self.made

    def use(self, servers: Iterable[str]) -> None:
        """Log in to the servers of a config from now on, where any has `oauth`."""
        if self.made is not None:
            self.made.use(servers)
            if self._database is not None:
                self.made.follow()

    async def facts(self) -> Mapping[str, list[dict[str, Any]]]:
        """Describe the logins, by the servers' names; none where they cannot be read now."""
        if self.made is None:
            return {}
        from callgate.tools.kinds.mcp.logins import LoginFailed, login_facts

        facts: dict[str, list[dict[str, Any]]] = {}
        try:
            for status in await self.made.statuses():
                facts.setdefault(status.server, []).append(login_facts(status))
        except LoginFailed:
            return {}
        return facts

    async def close(self) -> None:
        if self.made is not None:
            await self.made.close()

    def _logged_in(self, server: str) -> None:
        self.on_login(server)

    def _is_another(self, server: str, identity: Hashable) -> None:
        self.on_another(server, identity)

    def _report(self, change: "StateChange") -> None:
        who = {"key": change.identity.key, "user": change.identity.user}
        told = {name: value for name, value in who.items() if value}
        self._servers.login(change.server, str(change.state), change.reason, change.lacking, told)
        self._recorder.watchers.publish("server", {"name": change.server, "kind": "mcp", "login": str(change.state)})
