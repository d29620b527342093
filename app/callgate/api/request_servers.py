"""Answers a request with the tools of the MCP servers that it names by their addresses."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from callgate.api.answers import EmitAny, Work
from callgate.callers.client_mcp import NamedServers
from callgate.config import redaction
from callgate.conversation.errors import ChatError
from callgate.conversation.events import ToolsListed
from callgate.runtime.client_servers import OpenedServers

if TYPE_CHECKING:
    from callgate.api.conversation import Conversation


def with_secrets(servers: NamedServers) -> AbstractContextManager[None]:
    """Mask the credentials for servers in everything that is written meanwhile."""
    return redaction.lent(servers.secrets())


async def answer_with_servers(servers: NamedServers, conversation: "Conversation", work: Work, emit: EmitAny) -> None:
    """Open the servers, do the work with their tools, and close them whatever becomes of it."""
    client = conversation.caller.client_mcp
    opened = None
    if servers.clients and client is not None and conversation.request.tools.choice != "none":
        ports = conversation.context.own_ports
        opened = await conversation.runtime.toolboxes.client_servers().open(servers, client, ports)
    try:
        conversation.lists = _added(conversation, opened)
        await work(emit)
    finally:
        if opened is not None:
            opened.close()


def _added(conversation: "Conversation", opened: OpenedServers | None) -> Sequence[ToolsListed]:
    """Add the tools of servers to the route; return the lists of which the client is told."""
    tools = conversation.request.tools
    if opened is None:
        return ()
    route = opened.added_to(conversation.route, tools.allowed)
    if tools.approval_policies:
        route = route.asking_for(tools.approval_policies)
    conversation.route = route
    if tools.choice is not None:
        conversation.request.check_choice(route.offers)
    return tuple(opened.lists())


def credentials_not_kept() -> ChatError:
    """Return the error of a request whose run would outlive it, and could not be carried on without its credentials."""
    return ChatError(
        400,
        "Credentials for MCP servers of a request are not kept, so that its run cannot outlive it: send it without `background` and"
        " without `Idempotency-Key`.",
        param="tools",
        code="client_credentials_not_kept",
    )
