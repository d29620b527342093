"""Builds a tool from an entry of `tools` that is an HTTP request."""

from typing import Literal

from callgate.tools.executor import Policy, Tool
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Web, shown_address
from callgate.tools.kinds.http.endpoint import HttpEndpoint, PathValues
from callgate.tools.kinds.http.settings import HttpTool
from callgate.tools.policies import in_clear, tool_of


def http_tool(entry: HttpTool, defaults: Policy, web: Web) -> Tool:
    executor = HttpEndpoint(
        web,
        method=entry.method,
        url=entry.url,
        headers=in_clear(entry.headers),
        query=entry.query,
        body=entry.body,
        parameters=entry.parameters,
        rules=AddressRules.of(allow_private=entry.allow_private, allow=entry.allow_hosts),
        path_values=path_values(entry.multi_segment),
    )
    return tool_of(entry, executor, defaults, shown_address(entry.url))


def path_values(multi_segment: bool | Literal["encoded"]) -> PathValues:
    match multi_segment:
        case "encoded":
            return PathValues.ENCODED
        case True:
            return PathValues.SEGMENTS
        case _:
            return PathValues.ONE_SEGMENT
