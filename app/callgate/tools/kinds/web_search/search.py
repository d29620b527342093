"""Searches the web: asks an engine, and lists what it found."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.hosted.domains import DomainRules, domains_in
from callgate.tools.executor import CallContext
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Web, ask
from callgate.tools.kinds.web_search.engines import ANSWER, Engine, Hit, NoAnswer, Query, hits_in

LONGEST_TEXT: Final = 1000
"""Characters of an extract."""
LONGEST_TITLE: Final = 300
NOTHING: Final = "Nothing was found."
_DOMAINS: Final = {"type": "array", "items": {"type": "string"}}


def parameters_of(engine: Engine) -> dict[str, Any]:
    """Return the parameters of a search by an engine."""
    properties: dict[str, Any] = {
        "query": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "What to search for."},
        "allowed_domains": {**_DOMAINS, "description": "Only pages of these domains, as example.com."},
        "blocked_domains": {**_DOMAINS, "description": "No pages of these domains."},
    }
    if engine.takes_country:
        properties["country"] = {"type": "string", "description": "Where to search from: two letters, as DE."}
    return {"type": "object", "properties": properties, "required": ["query"], "additionalProperties": False}


class WebSearch:
    """Runs searches."""

    def __init__(self, web: Web, engine: Engine, *, url: str, key: str, rules: AddressRules, most: int) -> None:
        self._web = web
        self._engine = engine
        self._url = url
        self._key = key
        self._rules = rules
        self._most = most

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        bounds = list(_bounds_in(call.arguments))
        if any(rules is None for rules in bounds):
            return Failed("Not run: a domain is the name of a host, as example.com.", FailureKind.NOT_RUN)
        rules = [rule for rule in bounds if rule is not None]
        listed = {rule.field: rule.listed for rule in rules}
        country = call.arguments.get("country") or ""
        query = Query(
            text=call.arguments["query"],
            most=self._most,
            allowed=listed.get("allowed_domains", ()),
            blocked=listed.get("blocked_domains", ()),
            country=country if len(country) == len("DE") and country.isalpha() else "",
        )
        request = self._engine.words(self._url, self._key, query)
        answer = await ask(self._web, self._rules, request, ANSWER.bytes)
        if isinstance(answer, Failed):
            return answer
        try:
            hits = hits_in(self._engine, answer.text)
        except NoAnswer:
            return Failed("The search engine's answer cannot be read.", FailureKind.UNAVAILABLE)
        admitted = [hit for hit in hits if _is_page(hit.url) and all(rule.admits(hit.url) for rule in rules)]
        return Returned("\n\n".join(_listed(admitted[: self._most])) or NOTHING)


def _bounds_in(arguments: Mapping[str, Any]) -> Iterator[DomainRules | None]:
    """Yield the bounds of the domains; None for what is none."""
    for field in ("allowed_domains", "blocked_domains"):
        if arguments.get(field):
            listed = domains_in(arguments[field])
            yield None if listed is None else DomainRules(field=field, listed=listed)


def _is_page(url: str) -> bool:
    return url.startswith(("https://", "http://"))


def _listed(hits: Sequence[Hit]) -> Iterator[str]:
    """Yield each page: its title, its address, and what it says."""
    for number, hit in enumerate(hits, 1):
        text = _line(hit.text, LONGEST_TEXT)
        date = f"({hit.date}) " if hit.date else ""
        yield "\n".join(part for part in (f"{number}. {_line(hit.title, LONGEST_TITLE)}", hit.url, date + text) if part)


def _line(text: str, most: int) -> str:
    """Return a text in one line, so that nothing in it looks like another page."""
    line = " ".join(text.split())
    if len(line) > most:
        return line[: most - 1] + "…"
    return line
