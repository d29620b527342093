"""Builds a tool from an entry of `tools` that fetches pages."""

import importlib.util

from msgspec.structs import replace

from callgate.parsers.pool import ParserPool
from callgate.tools.executor import Policy, Safety, Tool
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.web_fetch.fetch import PARAMETERS, WebFetch
from callgate.tools.kinds.web_fetch.pages import READER
from callgate.tools.kinds.web_fetch.settings import WebFetchTool
from callgate.tools.policies import policy_of


def web_fetch_tool(entry: WebFetchTool, defaults: Policy, web: Web, parsers: ParserPool | None) -> Tool:
    """Raises `ValueError` where what reads pages is not installed."""
    if importlib.util.find_spec(READER) is None:
        raise ValueError("pages are read by a library that is not installed: pip install 'callgate[web]'")
    rules = AddressRules.of(allow_private=entry.allow_private, allow=entry.allow_hosts)
    executor = WebFetch(web, parsers, rules=rules, max_bytes=entry.max_bytes, max_redirects=entry.max_redirects)
    own = replace(defaults, safety=Safety.READ_ONLY, safety_is_given=True, untrusted=True)
    return Tool(
        name=entry.name,
        description=entry.description,
        parameters=PARAMETERS,
        executor=executor,
        policy=replace(own, **policy_of(entry)),
        kind=entry.kind,
        source="the web",
    )
