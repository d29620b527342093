"""Says how a server of `mcp_servers` is reached, and what its tools may do."""

from callgate.tools.executor import Policy
from callgate.tools.kinds.mcp.elicitation import MODES
from callgate.tools.kinds.mcp.http import HttpSpec, rules_for
from callgate.tools.kinds.mcp.process import StdioSpec
from callgate.tools.kinds.mcp.server import ServerSpec, legal_prefix
from callgate.tools.kinds.mcp.settings import McpServer
from callgate.tools.policies import in_clear, policy_of


def server_spec(name: str, section: McpServer, defaults: Policy) -> ServerSpec:
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
        pins=section.pins,
        resources=section.resources,
    )
