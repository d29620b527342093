"""Sets up one chat: its model, and a toolbox with the offered tools."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from callgate.auth.keys import Caller, nobody_may_approve
from callgate.config.schema import Config
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import Message, Toolbox
from callgate.ledger.entry import Ledger, NoLedger
from callgate.ledger.journal import LedgerJournal
from callgate.runtime.route import Route
from callgate.runtime.shared import SharedResources
from callgate.telemetry import logs
from callgate.tools.clients_only import ClientsOnly
from callgate.tools.read_more import PagedToolbox, ResultPages
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox, ToolSet, only_named
from callgate.upstream import litellm_model
from callgate.upstream.catalogue import Catalogue
from callgate.upstream.vision import reads_files, sees_images

REMEMBERED = 1024
"""Models whose `sees_images` is cached; wildcards let clients choose names."""


class ChatSetup(msgspec.Struct, frozen=True):
    """The model and the toolbox of one chat."""

    toolbox: Toolbox
    recall: Callable[[Sequence[Message]], Awaitable[None]]
    """Called with the restored history, to load stored results that it names."""
    sees_images: bool = False
    format_with_tools: bool = True


class Toolboxes:
    """Makes the toolbox of each chat, with recording, approvals, and paging of long results."""

    def __init__(self, config: Config, shared: SharedResources, registry: Registry, catalogue: Catalogue) -> None:
        self._limits = registry.limits
        self._result_bytes = config.limits.tool_result_bytes
        self._log_content = config.logging.content
        self._ask = None
        if not nobody_may_approve(config.server.host, config.auth):
            self._ask = partial(
                shared.decisions.ask,
                seconds=config.approvals.timeout_seconds,
                max_waiting=config.approvals.max_waiting,
            )
        self._ledger = shared.ledger
        self._kept_results = shared.kept_results
        self._catalogue = catalogue
        self._seeing: dict[tuple[str, bool], bool] = {}

    def engage(
        self,
        route: Route,
        caller: Caller,
        run_id: str,
        client_tools: Sequence[msgspec.Raw],
        allowed: frozenset[str] | None,
        ledger: Ledger | None = None,
    ) -> ChatSetup:
        server_tools = route.server_tools
        pages = ResultPages(self._kept_results, caller.name, run_id)
        if not server_tools:
            return ChatSetup(ClientsOnly(lambda: client_tools), pages.recall)
        if allowed is not None:
            client_tools = only_named(client_tools, allowed)
        toolbox = self._recorded(server_tools, client_tools, pages, caller, run_id, ledger)
        return ChatSetup(toolbox, pages.recall, self._sees_images(route.model.name), route.entry.format_with_tools)

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

    def of_server(self, tools: ToolSet, caller: Caller, run_id: str) -> Toolbox:
        """Return a toolbox of server tools for calls that no model makes, with the same rules."""
        return self._recorded(tools, (), ResultPages(self._kept_results, caller.name, run_id), caller, run_id)

    def _recorded(
        self,
        tools: ToolSet,
        client_tools: Sequence[msgspec.Raw],
        pages: ResultPages,
        caller: Caller,
        run_id: str,
        ledger: Ledger | None = None,
    ) -> Toolbox:
        inner = RequestToolbox(
            tools,
            client_tools,
            run_id=run_id,
            limits=self._limits,
            approve=None if self._ask is None else partial(self._ask, run_id=run_id, caller=caller.name),
            journal=self._journal(caller, run_id, ledger or self._ledger),
            on_cut=pages.keep,
        )
        return PagedToolbox(inner, pages, self._result_bytes)

    def _journal(self, caller: Caller, run_id: str, ledger: Ledger) -> LedgerJournal | None:
        """Return the journal that writes each call into the ledger, if there is one."""
        if isinstance(ledger, NoLedger):
            return None
        mask = logs.masked if self._log_content else None
        return LedgerJournal(ledger, run_id=run_id, key_name=caller.name, mask=mask)


clients_toolbox: Callable[[Callable[[], Sequence[msgspec.Raw]]], Toolbox] = ClientsOnly
"""Makes the toolbox of a chat with only the client's tools."""
