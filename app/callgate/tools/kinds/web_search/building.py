"""Builds a tool from an entry of `tools` that searches the web."""

from urllib.parse import urlsplit

from msgspec.structs import replace

from callgate.tools.executor import Policy, Safety, Tool
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.http.own_hosts import rules_of_host
from callgate.tools.kinds.web_search.engines import ENGINES
from callgate.tools.kinds.web_search.search import WebSearch, parameters_of
from callgate.tools.kinds.web_search.settings import WebSearchTool
from callgate.tools.policies import policy_of


def web_search_tool(entry: WebSearchTool, defaults: Policy, web: Web) -> Tool:
    engine = ENGINES[entry.engine]
    url = entry.url or engine.url
    key = "" if entry.api_key is None else entry.api_key.get_secret_value()
    rules = rules_of_host(urlsplit(url).hostname or "", allow_private=entry.allow_private)
    own = replace(defaults, safety=Safety.READ_ONLY, safety_is_given=True, untrusted=True)
    return Tool(
        name=entry.name,
        description=entry.description,
        parameters=parameters_of(engine),
        executor=WebSearch(web, engine, url=url, key=key, rules=rules, most=entry.max_results),
        policy=replace(own, **policy_of(entry)),
        kind=entry.kind,
        source=entry.engine,
    )
