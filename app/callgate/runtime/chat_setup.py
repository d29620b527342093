"""Sets up one chat: its model, and a toolbox with the offered tools."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from callgate.callers.caller import NOBODY, Caller, Principal, owner_name, words_for
from callgate.calls.legal_names import RESERVED_PREFIX
from callgate.calls.outcome import Failed, FailureKind
from callgate.calls.selection import OF_REQUESTS
from callgate.config.schema.whole import Config
from callgate.conversation.context import ContextKeeper, ContextWishes, PutAway, PutAwayImage
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import DeferredTools, Message, Toolbox
from callgate.models import litellm_model
from callgate.models.catalogue import Catalogue
from callgate.models.resolve import has_messages_wire, lane_of
from callgate.models.vision import reads_files, sees_images
from callgate.runtime.approvers import nobody_may_answer, nobody_may_approve
from callgate.runtime.route import Route
from callgate.runtime.shared import SharedResources
from callgate.state.entry import Ledger, NoLedger
from callgate.state.journal import LedgerJournal
from callgate.telemetry import logs
from callgate.tools.executor import Charge
from callgate.tools.read_more import NAME as READ_MORE
from callgate.tools.read_more import ResultPages
from callgate.tools.registry import RegisteredTool, Registry
from callgate.tools.toolbox import ClientsOnly, RequestToolbox, ToolSet, client_parameters, only_named
from callgate.tools.untrusted_results import Taint

if TYPE_CHECKING:  # imported where there are guardrails, and with the first request that names a server
    from callgate.runtime import guarding
    from callgate.runtime.client_servers import ClientServers

    ChatGuard: TypeAlias = guarding.ChatGuard
    RequestGuard: TypeAlias = guarding.RequestGuard

REMEMBERED = 1024
"""Models whose `sees_images` is cached; wildcards let clients choose names."""


class ChatSetup(msgspec.Struct, frozen=True):
    """The model and the toolbox of one chat."""

    toolbox: Toolbox
    recall: Callable[[Sequence[Message]], Awaitable[None]]
    """Called with the restored history, to load stored results that it names."""
    taint: Taint | None = None
    """Watches for words of others, where a tool's results may hold them."""
    sees_images: bool = False
    format_with_tools: bool = True
    deferred: DeferredTools | None = None
    """The tools that the model searches for, for a provider that loads them itself."""
    put_away: PutAway | None = None
    """Keeps a result that is cleared out of the prompt; None where no tool of ours is offered."""
    put_away_image: PutAwayImage | None = None
    """The same for an image."""
    save: Callable[[], Awaitable[None]] | None = None
    """Shares what was put away."""

    def context(
        self, wishes: ContextWishes | None, clear_above: int | None, *, prompt: str | None, needs_summary: bool
    ) -> ContextKeeper | None:
        """Return what keeps the prompt of the chat small; None where nobody asks for that. `needs_summary`: a summary that fails ends the
        chat."""
        if self.put_away is None:
            clear_above = None
        if wishes is None and clear_above is None:
            return None
        return ContextKeeper(
            wishes=wishes,
            clear_above=clear_above,
            prompt=prompt or "",
            put_away=self.put_away,
            put_away_image=self.put_away_image,
            save=self.save,
            is_clients=self.toolbox.is_clients,
            needs_summary=needs_summary,
        )


class ToolsNow:
    """The tools that a caller may use by the keys and the config of now."""

    def __init__(self, tools: ToolSet, caller: Caller) -> None:
        self._policies = {tool.address: tool.tool.policy for tool in tools.by_name.values()}
        self._client_mcp = caller.client_mcp

    def refusal(self, tool: RegisteredTool) -> Failed | None:
        """Return why a tool may not be called any more; None where it may."""
        if tool.source.startswith(OF_REQUESTS):
            return self._refusal_of_request(tool)
        policy = self._policies.get(tool.address)
        if policy is None:
            return Failed("Not run: this tool may not be used any more.", FailureKind.REFUSED)
        if policy.require_approval and not tool.tool.policy.require_approval:
            return Failed("Not run: this tool needs approval by now.", FailureKind.REFUSED)
        return None

    def _refusal_of_request(self, tool: RegisteredTool) -> Failed | None:
        """Return why a tool of a server that the request names may not be called any more."""
        from callgate.callers.client_mcp import ServerAddress

        if self._client_mcp is not None and self._client_mcp.admits(ServerAddress.of(tool.tool.source)):
            return None
        return Failed("Not run: this key may not name this server any more.", FailureKind.REFUSED)


RightsNow: TypeAlias = Callable[[], ToolsNow | None]
"""Returns the tools that a chat's caller may use by now, None where nothing has changed. Raises `ChatError` where it may ask nothing
any more."""


def _refusal(rights: RightsNow, tool: RegisteredTool) -> Failed | None:
    try:
        tools = rights()
    except ChatError as error:
        return Failed(f"Not run: {error.message}", FailureKind.REFUSED)
    if tools is None:
        return None
    return tools.refusal(tool)


class Toolboxes:
    """Makes the toolbox of each chat, with recording, approvals, and paging of long results."""

    def __init__(self, config: Config, shared: SharedResources, registry: Registry, catalogue: Catalogue) -> None:
        self._registry = registry
        self.guarding: guarding.Guarding | None = None
        """The guardrails of the config, if it has any."""
        if config.guardrails:
            from callgate.runtime.guarding import Guarding

            self.guarding = Guarding(config, shared, catalogue)
        self._limits = registry.limits
        self._result_bytes = config.limits.tool_result_bytes
        self._log_content = config.logging.content
        self._shared = shared
        self._ask = None
        self._put = None
        seconds = config.approvals.timeout_seconds
        most = config.approvals.max_waiting
        if not nobody_may_approve(config):
            self._ask = partial(shared.decisions.ask, seconds=seconds, max_waiting=most)
        if not nobody_may_answer(config):
            self._put = partial(shared.decisions.put, seconds=seconds, max_waiting=most)
        self._ledger = shared.ledger
        self._kept_results = shared.kept_results
        self._catalogue = catalogue
        self._seeing: dict[tuple[str, bool], bool] = {}
        self._speaking: dict[str, bool] = {}
        self._port = config.server.port
        self._client_servers: ClientServers | None = None
        """Made with the first request that names servers by their addresses."""

    async def close(self) -> None:
        if self._client_servers is not None:
            await self._client_servers.close()

    def client_servers(self) -> "ClientServers":
        """Return what opens the servers that requests name by their addresses."""
        if self._client_servers is None:
            from callgate.runtime.client_servers import ClientServers

            self._client_servers = ClientServers(
                self._registry,
                self._shared.web(),
                self._shared.parsers,
                self._shared.metrics,
                result_bytes=self._result_bytes,
                port=self._port,
            )
        return self._client_servers

    def engage(
        self,
        route: Route,
        caller: Caller,
        run_id: str,
        client_tools: Sequence[msgspec.Raw],
        allowed: frozenset[str] | None,
        ledger: Ledger | None = None,
        rights: RightsNow | None = None,
        charge: Charge | None = None,
        principal: Principal = NOBODY,
        guard: "ChatGuard | None" = None,
    ) -> ChatSetup:
        """`rights`: asked before each call. `charge`: charges those that cost something. `principal`: on whose behalf they are. `guard`: has
        hooks judge their results."""
        server_tools = route.server_tools
        pages = self._pages(caller, run_id, principal)
        if not server_tools:
            return ChatSetup(ClientsOnly(lambda: client_tools), pages.recall)
        usable_tools = client_tools if allowed is None else only_named(client_tools, allowed)
        toolbox = self._toolbox(server_tools, usable_tools, pages, caller, run_id, ledger, rights, principal, charge)
        if guard is not None:
            guard.watch(toolbox)
        if server_tools.writes and (
            self._registry.untrusted or server_tools.is_untrusted or caller.client_mcp is not None
        ):
            toolbox.taint = self._taint(toolbox, client_tools, caller)
        return ChatSetup(
            toolbox,
            toolbox.recall,
            toolbox.taint,
            self._sees_images(route.model.name),
            route.entry.format_with_tools,
            toolbox.server_tools.deferred,
            toolbox.put_away,
            toolbox.put_away_image,
            pages.save,
        )

    def _taint(self, toolbox: RequestToolbox, client_tools: Sequence[msgspec.Raw], caller: Caller) -> Taint:
        """Return what watches for words of others. `client_tools`: all of the request, those included that it may not call."""

        def is_untrusted(name: str) -> bool:
            return toolbox.is_untrusted(name) or self._was_untrusted(name)

        if caller.client_mcp is None:
            return Taint(is_untrusted, toolbox.is_of_request)
        known = None

        def is_gone(name: str) -> bool:
            """Return whether nobody has a tool that the history has a call of: it may be one of a server that an earlier request named."""
            nonlocal known
            if toolbox.has(name):
                return False
            if known is None:
                from callgate.tools.tool_search import NAMES

                known = self._registry.claims().union(client_parameters(client_tools), (READ_MORE, *NAMES))
            return known.isdisjoint((name, name.removeprefix(RESERVED_PREFIX)))

        return Taint(
            lambda name: is_untrusted(name) or is_gone(name), lambda name: toolbox.is_of_request(name) or is_gone(name)
        )

    def _was_untrusted(self, name: str) -> bool:
        """Return whether the results of a tool in a history hold words of others, which need not be on offer any more."""
        return not self._registry.untrusted.isdisjoint((name, name.removeprefix(RESERVED_PREFIX)))

    def _sees_images(self, model: str) -> bool:
        """Return whether a model takes images. Looked up once, and again once litellm's list is loaded."""
        place = (model, litellm_model.is_loaded())
        if (sees := self._seeing.get(place)) is None:
            if len(self._seeing) >= REMEMBERED:
                self._seeing.clear()
            sees = self._seeing[place] = all(map(sees_images, self._catalogue.entries(model)))
        return sees

    def reads_files(self, model: str) -> bool:
        """Return whether a model takes PDFs; False for one that does not exist."""
        try:
            entries = self._catalogue.entries(model)
        except ChatError:
            return False
        return bool(entries) and all(map(reads_files, entries))

    def speaks_messages(self, model: str) -> bool:
        """Return whether a model has Anthropic's own API, which is looked up once; False for one that does not exist."""
        speaks = self._speaking.get(model)
        if speaks is None:
            try:
                entry = self._catalogue.entry(model)
            except ChatError:
                return False
            if len(self._speaking) >= REMEMBERED:
                self._speaking.clear()
            speaks = self._speaking[model] = has_messages_wire(entry) and lane_of(entry) == "translated"
        return speaks

    def of_server(
        self, tools: ToolSet, caller: Caller, run_id: str, rights: RightsNow, principal: Principal = NOBODY
    ) -> RequestToolbox:
        """Return a toolbox of server tools for calls that no model makes, with the same rules."""
        pages = self._pages(caller, run_id, principal)
        return self._toolbox(tools, (), pages, caller, run_id, rights=rights, principal=principal)

    def _toolbox(
        self,
        tools: ToolSet,
        client_tools: Sequence[msgspec.Raw],
        pages: ResultPages,
        caller: Caller,
        run_id: str,
        ledger: Ledger | None = None,
        rights: RightsNow | None = None,
        principal: Principal = NOBODY,
        charge: Charge | None = None,
    ) -> RequestToolbox:
        approve = None
        asked_by = caller.name if caller.person is None else words_for(caller)
        if self._ask is not None:
            approve = partial(self._ask, run_id=run_id, caller=asked_by)
        put = None
        if self._put is not None and tools.asks:
            put = partial(self._put, run_id=run_id, caller=asked_by, owner=owner_name(caller))
        refusal = None
        if rights is not None:
            refusal = partial(_refusal, rights)
        return RequestToolbox(
            tools,
            client_tools,
            run_id,
            "" if caller.anonymous else caller.name,
            principal,
            charge,
            self._limits,
            self._journal(caller, run_id, ledger or self._ledger),
            pages,
            refusal,
            approve,
            put,
        )

    def _pages(self, caller: Caller, run_id: str, principal: Principal) -> ResultPages:
        owner = caller.name
        if principal is not NOBODY:
            owner = principal.kept_for()
        return ResultPages(self._kept_results, owner, run_id, self._result_bytes)

    def _journal(self, caller: Caller, run_id: str, ledger: Ledger) -> LedgerJournal | None:
        """Return the journal that writes each call into the ledger, if there is one."""
        if isinstance(ledger, NoLedger):
            return None
        mask = logs.masked if self._log_content else None
        return LedgerJournal(ledger, run_id=run_id, key_name=caller.name, mask=mask)


clients_toolbox: Callable[[Callable[[], Sequence[msgspec.Raw]]], Toolbox] = ClientsOnly
"""Makes the toolbox of a chat with only the client's tools."""
