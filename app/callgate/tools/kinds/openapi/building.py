"""Builds a source of tools from an entry of `tools` that is an API with an OpenAPI document."""

from msgspec.structs import replace

from callgate.parsers.pool import ParserPool
from callgate.tools.executor import Policy, Safety
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.building import path_values
from callgate.tools.kinds.openapi.reading import OperationFilter
from callgate.tools.kinds.openapi.settings import OpenApiTool
from callgate.tools.kinds.openapi.source import Api, OpenApiSource
from callgate.tools.policies import in_clear, policy_of


def open_api_source(entry: OpenApiTool, defaults: Policy, parsers: ParserPool | None = None) -> OpenApiSource:
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
    return OpenApiSource(entry.name, api, entry.document, parsers=parsers)
