"""Builds the sources of tools: MCP servers and OpenAPI documents. Their clients are imported only where they are used."""

from dataclasses import replace
from typing import TYPE_CHECKING

from callgate.config.schema import McpServer as McpSection
from callgate.config.schema import OpenApiTool
from callgate.runtime.builders.policies import in_clear, policy_of
from callgate.tools.addresses import AddressRules
from callgate.tools.executor import Policy, Safety

if TYPE_CHECKING:
    from callgate.tools.mcp_server import ServerSpec
    from callgate.tools.openapi import OpenApiSource


def server_spec(name: str, section: McpSection, defaults: Policy) -> "ServerSpec":
    from callgate.tools.mcp_server import ServerSpec, legal_prefix

    overrides = policy_of(section)
    overrides.pop("concurrency", None)  # it limits the server, all its tools together
    from callgate.tools.mcp_http import HttpSpec, rules_for
    from callgate.tools.mcp_process import StdioSpec

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
    )


def open_api_source(entry: OpenApiTool, defaults: Policy) -> "OpenApiSource":
    from callgate.runtime.builders.http import path_values
    from callgate.tools.openapi import Api, OpenApiSource, OperationFilter

    api = Api(
        base_url=entry.base_url,
        auth=in_clear(entry.auth),
        headers=in_clear(entry.headers),
        selection=OperationFilter(entry.include, entry.exclude),
        rules=AddressRules.of(allow_private=entry.allow_private, allow=entry.allow_hosts),
        policy=replace(defaults, **{**policy_of(entry), "concurrency": None}),  # of the API, all its tools together
        safety=None if entry.safety is None else Safety(entry.safety),
        path_values=path_values(entry.multi_segment),
        prefix=entry.prefix,
        rename=entry.rename,
    )
    return OpenApiSource(entry.name, api, entry.document)
