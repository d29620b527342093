"""The keys of an issuer: when they are looked at, and what becomes of them while it is away."""

import asyncio
import json
from typing import Any

import pytest

from callgate.access.oidc.building import IssuersInUse
from callgate.access.oidc.issuer import AGAIN_SECONDS, KEPT_SECONDS, KEYS_SECONDS, Issuer, IssuerNews, NotFetched
from callgate.access.oidc.people import GroupRights, People
from callgate.access.oidc.settings import Oidc
from callgate.access.oidc.signing_keys import NoSigningKeys, SigningKeys
from callgate.access.oidc.tokens import TokenRules
from callgate.callers.caller import Caller
from callgate.callers.tokens import KeysWanted, TokenRefused
from callgate.conversation.errors import ChatError
from callgate.telemetry.metrics import Metrics
from tests.harness.issuer import AUDIENCE, RSA_KEY, TestIssuer, jwk_of

pytestmark = pytest.mark.anyio


class Watched:
    """An issuer whose documents come from a test, by a clock of the test's own."""

    def __init__(self, **discovery: Any) -> None:
        self.tokens = TestIssuer()
        self.now = 1000.0
        self.asked: list[str] = []
        self.is_away = False
        self.gate: asyncio.Event | None = None
        self.news: list[IssuerNews] = []
        self.counted: list[str] = []
        self._discovery = discovery
        self.issuer = Issuer(self.tokens.url, None, self._fetch, self.news.append, clock=lambda: self.now)
        rules = TokenRules(self.tokens.url, frozenset({AUDIENCE}), frozenset({"RS256", "ES256"}), 60.0)
        self.people = People(rules, [GroupRights("dev", Caller("dev"))], self.issuer, self.counted.append)

    async def _fetch(self, address: str) -> bytes:
        self.asked.append(address.removeprefix(self.tokens.url))
        if self.gate is not None:
            await self.gate.wait()
        if self.is_away:
            raise NotFetched("it is away")
        if address.endswith("/keys"):
            return json.dumps({"keys": self.tokens.keys}).encode()
        said = {"issuer": self.tokens.url, "jwks_uri": f"{self.tokens.url}/keys"} | self._discovery
        return json.dumps(said).encode()

    async def identify(self, token: str) -> Caller:
        """As the middleware does it."""
        try:
            return self.people.identify(token)
        except KeysWanted as wanted:
            await wanted.fetch()
            return self.people.identify(token)

    async def settled(self) -> None:
        """Wait for a look that is under way."""
        await self.issuer.look()

    def looks(self) -> int:
        return self.asked.count("/keys")


async def test_a_thousand_first_requests_are_one_look() -> None:
    watched = Watched()
    watched.gate = asyncio.Event()
    tokens = [watched.tokens.token(f"p{number}") for number in range(7)]
    asking = [asyncio.create_task(watched.identify(tokens[number % 7])) for number in range(1000)]
    await asyncio.sleep(0)
    watched.gate.set()
    assert {caller.name for caller in await asyncio.gather(*asking)} == {f"p{n}@login.example" for n in range(7)}
    assert watched.looks() == 1


async def test_a_key_that_is_known_is_not_looked_for_while_somebody_waits() -> None:
    watched = Watched()
    await watched.identify(watched.tokens.token())
    watched.now += KEYS_SECONDS - 1
    watched.people.identify(watched.tokens.token("bob"))
    assert watched.looks() == 1
    watched.now += 1
    watched.gate = asyncio.Event()
    watched.people.identify(watched.tokens.token("eve"))  # answered by the keys of before, while it looks
    watched.gate.set()
    await watched.settled()
    assert watched.looks() == 2


async def test_an_unknown_key_is_looked_for_once_a_minute() -> None:
    watched = Watched()
    await watched.identify(watched.tokens.token())
    for _ in range(50):
        with pytest.raises(TokenRefused, match="none of the keys"):
            await watched.identify(watched.tokens.token(header={"kid": "other"}))
    assert watched.looks() == 1
    watched.now += AGAIN_SECONDS
    for _ in range(50):
        with pytest.raises(TokenRefused, match="none of the keys"):
            await watched.identify(watched.tokens.token(header={"kid": "other"}))
    assert watched.looks() == 2


async def test_a_new_key_is_taken_and_one_that_is_gone_takes_its_tokens_along() -> None:
    watched = Watched()
    before = watched.tokens.token()
    await watched.identify(before)
    watched.tokens.rotate(RSA_KEY, "second", "RS256")
    watched.now += AGAIN_SECONDS
    generation = watched.people.generation()
    await watched.identify(watched.tokens.token("bob"))
    watched.people.identify(before)
    assert watched.people.known("ada@login.example") is not None
    watched.tokens.rotate(RSA_KEY, "third", "RS256", keep=False)
    watched.now += KEYS_SECONDS
    await watched.settled()
    assert watched.people.known("ada@login.example") is None
    assert watched.people.generation() > generation
    with pytest.raises(TokenRefused):
        await watched.identify(before)


async def test_keys_outlive_their_issuer_for_hours_and_not_for_ever() -> None:
    watched = Watched()
    token = watched.tokens.token()
    await watched.identify(token)
    watched.is_away = True
    watched.now += KEYS_SECONDS
    await watched.settled()
    assert watched.news[-1] == IssuerNews("it is away", has_keys=True)
    watched.now += KEPT_SECONDS - KEYS_SECONDS - 1
    watched.people.identify(token)
    watched.people.identify(watched.tokens.token("bob"))
    watched.now += 1
    with pytest.raises(ChatError) as refused:
        await watched.identify(token)
    assert (refused.value.status, refused.value.code) == (503, "issuer_unavailable")
    watched.is_away = False
    watched.now += AGAIN_SECONDS
    assert (await watched.identify(token)).name == "ada@login.example"


async def test_an_issuer_that_is_away_is_not_pressed() -> None:
    watched = Watched()
    watched.is_away = True
    for _ in range(100):
        with pytest.raises(ChatError) as refused:
            await watched.identify(watched.tokens.token())
        assert refused.value.status == 503
    assert watched.asked == ["/.well-known/openid-configuration"]


@pytest.mark.parametrize(
    ("discovery", "why"),
    [
        ({"issuer": "https://login.example/"}, "with or without the slash"),
        ({"issuer": "https://evil.example"}, "is of 'https://evil.example'"),
        ({"issuer": None}, "is of 'None'"),
        ({"jwks_uri": None}, "no `jwks_uri`"),
        ({"jwks_uri": "file:///etc/passwd"}, "no `jwks_uri`"),
        ({"jwks_uri": "https://[login.example/keys"}, "no `jwks_uri`"),
        ({"jwks_uri": "https://"}, "no `jwks_uri`"),
    ],
    ids=["slash", "other", "none", "no keys", "a file", "half an address", "no address"],
)
async def test_a_discovery_document_of_somebody_else_is_none(discovery: dict[str, Any], why: str) -> None:
    watched = Watched(**discovery)
    await watched.settled()
    assert watched.issuer.keys is None
    assert why in str(watched.issuer.failure)


async def test_a_page_signs_in_at_the_issuer_of_its_config_also_after_a_reload_that_failed() -> None:
    async with TestIssuer().served() as mine, TestIssuer().served() as other:
        issuers = IssuersInUse(Metrics())
        read = [
            Oidc.model_validate({"issuer": url, "audience": AUDIENCE, "groups": {"dev": {}}, "client_id": "page"})
            for url in (mine.url, other.url)
        ]
        for oidc in read:
            issuers.people(oidc)
        told = await issuers.sign_in(read[0])
        await issuers.close()
    assert told is not None
    assert told.token == f"{mine.url}/token"


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [1, null, {}]}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
        json.dumps({"keys": [jwk_of(RSA_KEY, "a")] * 101}).encode(),
        json.dumps({"keys": [jwk_of(RSA_KEY, "a", more="x" * 65_536)]}).encode(),
        json.dumps({"keys": [{**jwk_of(RSA_KEY, "a"), "d": "AQAB"}]}).encode(),
        json.dumps({"keys": [{**jwk_of(RSA_KEY, "a"), "e": "AQ"}]}).encode(),
        json.dumps({"keys": [{**jwk_of(RSA_KEY, "a"), "n": "AQAB"}]}).encode(),
        json.dumps({"keys": [jwk_of(RSA_KEY, "a", key_ops=["sign"])]}).encode(),
        b'{"keys": [{"kty": "EC", "crv": [], "x": "AA", "y": "AA"}]}',
        b'{"keys": [{"kty": "OKP", "crv": {}, "x": "AA"}, {"kty": [], "n": 7, "e": null}]}',
        json.dumps({"keys": [jwk_of(RSA_KEY, "a", alg="HS256")]}).encode(),
    ],
    ids=lambda document: document[:24].decode(),
)
def test_what_holds_no_key_for_tokens_is_refused(document: bytes) -> None:
    with pytest.raises(NoSigningKeys):
        SigningKeys.of_document(document)


async def test_who_was_verified_is_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.access.oidc.people.REMEMBERED", 3)
    watched = Watched()
    tokens = [watched.tokens.token(f"p{number}") for number in range(5)]
    for token in tokens:
        await watched.identify(token)
    assert (len(watched.people.signed_in.of_token), len(watched.people.signed_in.of_name)) == (3, 3)
    assert watched.counted.count("accepted") == 5
    for token in tokens[2:]:
        await watched.identify(token)
    assert watched.counted.count("accepted") == 5
