"""Says how a server of `mcp_servers` is reached, as whom, and what its tools may do."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.parsers.pool import ParserPool
from callgate.tools.executor import Policy, Source
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.authorization import Authorization, Identity
from callgate.tools.kinds.mcp.elicitation import MODES
from callgate.tools.kinds.mcp.http import HttpSpec, rules_for
from callgate.tools.kinds.mcp.pins import Pins
from callgate.tools.kinds.mcp.process import StdioSpec
from callgate.tools.kinds.mcp.server import McpSource, ServerSpec, legal_prefix
from callgate.tools.kinds.mcp.settings import McpServer
from callgate.tools.policies import in_clear, policy_of

if TYPE_CHECKING:
    from callgate.tools.kinds.mcp.oauth.service import OAuthLogins


def server_source(
    name: str,
    section: McpServer,
    defaults: Policy,
    web: Web,
    pins: Pins | None,
    parsers: ParserPool | None,
    logins: "Callable[[], OAuthLogins] | None",
) -> Source:
    """Return the source of a server's tools. `logins`: made for the first server that is logged in to. Raises `ValueError`."""
    authorization: Authorization | None = None
    if section.oauth is not None and section.oauth.grant != "none":
        from callgate.tools.kinds.mcp.oauth.building import authorization_of, check_oauth

        check_oauth(section.oauth)
        if logins is not None:
            authorization = authorization_of(logins(), name, section)
    spec = server_spec(name, section, defaults, authorization)
    if spec.per == "server":
        return McpSource(spec, web, pins, parsers)
    from callgate.tools.kinds.mcp.identity_source import IdentitySource

    async def logged_in() -> list[Identity]:
        if authorization is None or logins is None:
            return []
        return await logins().identities(name)

    link = None
    if authorization is not None and logins is not None:
        link = logins().tickets.link
    return IdentitySource(spec, web, pins, parsers, list_known=logged_in, link=link)


def server_spec(
    name: str, section: McpServer, defaults: Policy, authorization: Authorization | None = None
) -> ServerSpec:
    overrides = policy_of(section)
    overrides.pop("concurrency", None)  # it limits the server, all its tools together
    if section.command is not None:
        env = in_clear(section.env)
        transport: StdioSpec | HttpSpec = StdioSpec(section.command, section.args, env, section.cwd)
    else:
        assert section.url is not None, "the schema asks for one or the other"
        transport = HttpSpec(
            section.url,
            in_clear(section.headers),
            sse=None if section.type is None else section.type == "sse",
            rules=rules_for(section.url, allow_private=section.allow_private),
        )
    return ServerSpec(
        name=name,
        transport=transport,
        prefix=legal_prefix(name) if section.prefix is None else section.prefix,
        allowed_tools=section.allowed_tools,
        policy=defaults,
        overrides=overrides,
        modes=MODES[section.elicitation],
        per="server" if section.oauth is None else section.oauth.per,
        authorization=authorization,
        forwards={header: source.lower() for header, source in section.forward_headers.items()},
        pins=section.pins,
        resources=section.resources,
    )
