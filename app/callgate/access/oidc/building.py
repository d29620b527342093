"""Builds the callers that tokens stand for, and what fetches the keys of their issuer."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

import httpx2

from callgate.access.building import allowance_of, caller_of_group
from callgate.access.oidc.issuer import DOCUMENT_BYTES, Fetch, Issuer, IssuerNews, NotFetched
from callgate.access.oidc.people import GroupRights, People
from callgate.access.oidc.settings import Group, Oidc
from callgate.access.oidc.tokens import TokenRules
from callgate.callers.sign_in import SignIn
from callgate.calls.outcome import Failed
from callgate.config.entry_errors import BadEntry
from callgate.telemetry.metrics import Metrics
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import Request, Web, ask
from callgate.tools.kinds.http.own_hosts import rules_of_host

FETCH_SECONDS: Final = 10.0
MOST_RULES: Final = 4
"""Of how many configs the tokens that were verified are remembered, so that one that is taken back verifies none again."""


class IssuersInUse:
    """The issuers of this process. They stay, with their keys and who has signed in, when the config changes and names them again."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._web: Web | None = None
        self._issuers: dict[tuple[str, str | None], Issuer] = {}
        self._people: dict[tuple[TokenRules, str | None], People] = {}
        self.current: Issuer | None = None
        """That of the config that was read last."""

    def people(self, oidc: Oidc | None) -> People | None:
        """Return who the tokens of a config stand for; None where it takes none. Raises `BadEntry`."""
        if oidc is None:
            self.current = None
            return None
        check_addresses(oidc)
        rules = rules_of(oidc)
        issuer = self._issuers.get((oidc.issuer, oidc.jwks))
        if issuer is None:
            if self._web is None:
                self._web = Web()
            issuer = Issuer(oidc.issuer, oidc.jwks, fetch_of(oidc.issuer, self._web), self._count_look)
            self._issuers[oidc.issuer, oidc.jwks] = issuer
        self.current = issuer
        issuer.look_in_time()
        groups = [group_rights(name, group) for name, group in oidc.groups.items()]
        before = self._people.pop((rules, oidc.jwks), None)
        people = People(rules, groups, issuer, self._count_token, None if before is None else before.signed_in)
        while len(self._people) >= MOST_RULES:
            del self._people[next(iter(self._people))]
        self._people[rules, oidc.jwks] = people
        return people

    async def sign_in(self, oidc: Oidc) -> SignIn | None:
        """Return where a page signs in; None where the config has no client for it, or the issuer does not say."""
        issuer = self._issuers.get((oidc.issuer, oidc.jwks))  # the current one is another's where a reload has failed
        if issuer is None or oidc.client_id is None:
            return None
        if issuer.discovered is None and issuer.may_look():
            await issuer.look()
        told = issuer.discovered
        if told is None or told.authorization is None or told.token is None:
            return None
        return SignIn(oidc.issuer, oidc.client_id, oidc.scopes, told.authorization, told.token, told.end_session)

    async def close(self) -> None:
        for issuer in self._issuers.values():
            await issuer.close()
        if self._web is not None:
            await self._web.close()

    def _count_token(self, outcome: str) -> None:
        self._metrics.sign_ins.of(outcome).inc()

    def _count_look(self, news: IssuerNews) -> None:
        self._metrics.issuer_looks.of("ok" if news.failure is None else "failed").inc()


async def looked_at(oidc: Oidc) -> Issuer:
    """Return the issuer of a config, looked at once. Raises `BadEntry`."""
    check_addresses(oidc)
    web = Web()
    try:
        issuer = Issuer(oidc.issuer, oidc.jwks, fetch_of(oidc.issuer, web), lambda _: None)
        await issuer.look()
    finally:
        await web.close()
    return issuer


def rules_of(oidc: Oidc) -> TokenRules:
    claims = oidc.claims
    return TokenRules(
        oidc.issuer,
        frozenset(oidc.audience),
        frozenset(oidc.algorithms),
        oidc.clock_skew,
        subject=claims.sub,
        name=claims.name,
        groups=claims.groups,
    )


def group_rights(name: str, group: Group) -> GroupRights:
    return GroupRights(name, caller_of_group(name, group), allowance_of(group.per_member))


def check_addresses(oidc: Oidc) -> None:
    """Raise `BadEntry` where keys would be fetched from somebody else in the clear."""
    for field, address in (("issuer", oidc.issuer), ("jwks", oidc.jwks)):
        if address is not None and not _may_be_asked(address, _rules_of(address)):
            raise BadEntry(
                ("auth", "oidc", field),
                None,
                "has to begin with https://: whoever is on the way could put keys of his own there",
            )


def fetch_of(issuer: str, web: Web) -> Fetch:
    """Return what gets documents of an issuer. Private addresses are allowed where the issuer is plainly the operator's own."""
    own = _rules_of(issuer)

    async def fetch(address: str) -> bytes:
        rules = own if own is PUBLIC_ONLY or _host(address) == _host(issuer) else _rules_of(address)
        if not _may_be_asked(address, rules):
            raise NotFetched(f"{_host(address)} is to be asked in the clear")
        try:
            request = Request("GET", httpx2.URL(address), {"Accept": "application/json"})
            async with asyncio.timeout(FETCH_SECONDS):
                answer = await ask(web, rules, request, DOCUMENT_BYTES)
        except TimeoutError:
            raise NotFetched(f"{_host(address)} did not answer in {FETCH_SECONDS:g} s") from None
        except httpx2.InvalidURL:
            raise NotFetched("it names an address that is none") from None
        if isinstance(answer, Failed):
            raise NotFetched(answer.text[:300])
        if answer.cut_bytes:
            raise NotFetched(f"{_host(address)} answered with more than {DOCUMENT_BYTES:,} bytes")
        return answer.text.encode()

    return fetch


def _rules_of(address: str) -> AddressRules:
    return rules_of_host(_host(address))


def _host(address: str) -> str:
    return urlsplit(address).hostname or ""


def _may_be_asked(address: str, rules: AddressRules) -> bool:
    return address.startswith("https://") or rules is not PUBLIC_ONLY
