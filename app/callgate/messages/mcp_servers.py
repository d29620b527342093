"""Reads the `mcp_servers` of a Messages request, and the toolsets that say which of their tools it wants."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.api.client_servers import ServerEntry, check_together, read_server
from callgate.api.mcp_entries import MCP_SCHEME, OWN_LABEL, approval_policy, read_filter
from callgate.callers.client_mcp import ClientMcp, NamedServers, RequestedServer
from callgate.calls.selection import ApprovalPolicy, ToolSelection
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ToolAsListed
from callgate.messages.request_schema import MessagesTool, RequestedMcpServer, ToolOfListing, listing_in, wrong


class ServersRead(msgspec.Struct):
    """What a request says of MCP servers."""

    narrowing: list[ToolSelection] = []
    """The tools of ours that it selects."""
    approvals: list[ApprovalPolicy] = []
    clients: list[RequestedServer] = []

    def named(self) -> NamedServers | None:
        """Return the servers that are named by their addresses; None where there are none."""
        if not self.clients:
            return None
        return NamedServers(clients=self.clients)


def read_servers(
    servers: Sequence[RequestedMcpServer],
    toolsets: Mapping[str, MessagesTool],
    listings: Mapping[str, Sequence[ToolOfListing]],
    labels: frozenset[str],
    client: ClientMcp | None,
) -> ServersRead:
    """Read them. `toolsets` and `listings`: by their names. Raises `ChatError`."""
    names = {server.name for server in servers}
    for name in toolsets:
        if name not in names:
            raise wrong("tools", f"MCP server '{name[:64]}' not found in `mcp_servers`")
    read = ServersRead()
    for place, server in enumerate(servers):
        _read_server(server, toolsets.get(server.name), listings.get(server.name), labels, client, place, read)
    with _in_words_of_messages():
        check_together(read.clients, client)
    return read


@contextlib.contextmanager
def _in_words_of_messages() -> Iterator[None]:
    """Have an error name its field first, as those of this API do."""
    try:
        yield
    except ChatError as error:
        message = f"{error.param}: {error.message}"
        raise ChatError(error.status, message, param=error.param, code=error.code) from None


def _read_server(
    server: RequestedMcpServer,
    toolset: MessagesTool | None,
    listing: Sequence[ToolOfListing] | None,
    labels: frozenset[str],
    client: ClientMcp | None,
    place: int,
    read: ServersRead,
) -> None:
    where = f"mcp_servers.{place}"
    pinned = None
    if toolset is not None:
        pinned = listing_in(toolset.tools, "tools.mcp_toolset.tools")
    selection = _selection(server, toolset, where)
    if not server.url or server.url.startswith(MCP_SCHEME):
        source = _check_ours(server, where)
        if selection is None:
            return
        selection = replace(selection, source=source)
        if pinned is not None:
            listed = frozenset(tool.name for tool in pinned)
            selection = replace(selection, names=listed if selection.names is None else listed & selection.names)
        read.narrowing.append(selection)
        sources = ["", *labels] if source is None else [source]
    else:
        entry = ServerEntry(
            label=server.name,
            url=server.url,
            token=server.authorization_token,
            refusal="mcp_url_not_allowed",
            places={
                "label": f"{where}.name",
                "url": f"{where}.url",
                "token": f"{where}.authorization_token",
            },
        )
        waits = server.require_approval is None
        any_tool = selection or ToolSelection(names=frozenset())
        with _in_words_of_messages():
            requested = read_server(entry, client, {OWN_LABEL, *labels}, any_tool, waits=waits)
        if selection is None:
            return
        known = listing if pinned is None else pinned
        if known is not None:
            requested = replace(requested, listing=tuple(map(_as_listed, known)))
        read.clients.append(requested)
        sources = [requested.source()]
    policies = [approval_policy(server.require_approval, name, f"{where}.require_approval") for name in sources]
    read.approvals += [policy for policy in policies if policy is not None]


def _check_ours(server: RequestedMcpServer, where: str) -> str | None:
    """Return the source of a server of ours: None for all of them, under the name `callgate`."""
    if server.url and server.url != MCP_SCHEME + server.name:
        message = (
            f"give '{MCP_SCHEME}NAME' with the name of an MCP server of this server's config, which is the `name` too"
        )
        raise wrong(f"{where}.url", message, code="mcp_url_not_allowed")
    if server.authorization_token:
        raise wrong(f"{where}.authorization_token", "the credentials of MCP servers stand in this server's config")
    if server.name == OWN_LABEL:
        return None
    return server.name


def _selection(server: RequestedMcpServer, toolset: MessagesTool | None, where: str) -> ToolSelection | None:
    """Return what selects the requested tools of a server; None where it is switched off."""
    configured = server.tool_configuration
    if configured is not None:
        if configured.enabled is False:
            return None
        if configured.allowed_tools is not None:
            return read_filter(configured.allowed_tools, None, f"{where}.tool_configuration.allowed_tools")
    if toolset is None:
        return ToolSelection()
    configs = {name: config for name, config in (toolset.configs or {}).items() if config is not None}
    if toolset.default_config is not None and toolset.default_config.enabled is False:
        return ToolSelection(names=frozenset(name for name, config in configs.items() if config.enabled))
    return ToolSelection(without=frozenset(name for name, config in configs.items() if config.enabled is False))


def _as_listed(tool: ToolOfListing) -> ToolAsListed:
    schema: Any = tool.input_schema
    return ToolAsListed(tool.name, tool.description or "", schema)
