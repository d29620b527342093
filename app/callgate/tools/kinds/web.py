"""Builds the tools that know the web by themselves: its search, and its pages."""

from typing import TYPE_CHECKING

from callgate.parsers.pool import ParserPool
from callgate.tools.executor import Policy, Tool
from callgate.tools.kinds.web_fetch.settings import WebFetchTool
from callgate.tools.kinds.web_search.settings import WebSearchTool

if TYPE_CHECKING:
    from callgate.tools.kinds.http.client import Web


def tool_of_the_web(
    entry: WebSearchTool | WebFetchTool, defaults: Policy, web: "Web", parsers: ParserPool | None
) -> Tool:
    """Build the tool. What it needs is imported with the first of its kind."""
    if isinstance(entry, WebSearchTool):
        from callgate.tools.kinds.web_search.building import web_search_tool

        return web_search_tool(entry, defaults, web)
    from callgate.tools.kinds.web_fetch.building import web_fetch_tool

    return web_fetch_tool(entry, defaults, web, parsers)
