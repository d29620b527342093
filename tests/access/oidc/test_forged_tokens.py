"""Tokens that somebody made up, or turned to another use, are refused, and nothing that they name is asked for."""

import hmac
import json
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.issuer import RSA_KEY, TestIssuer, auth_of, encoded, jwk_of, signature_of
from tests.harness.server import serve

pytestmark = pytest.mark.anyio

P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC_PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
EVIL = "https://evil.example"
Forger = Callable[[TestIssuer], str]


def signed_by(key: Any, algorithm: str, header: Any, claims: Any) -> str:
    text = f"{encoded(header)}.{encoded(claims)}"
    return f"{text}.{encoded(signature_of(key, algorithm, text.encode()))}"


def with_secret(issuer: TestIssuer, secret: bytes, algorithm: str = "HS256") -> str:
    text = f"{encoded(issuer.header(alg=algorithm))}.{encoded(issuer.claims())}"
    return f"{text}.{encoded(hmac.new(secret, text.encode(), sha256).digest())}"


def with_part(token: str, place: int, change: Callable[[str], str]) -> str:
    parts = token.split(".")
    parts[place] = change(parts[place])
    return ".".join(parts)


def of_other_curve(issuer: TestIssuer) -> str:
    """ES256 with a key of P-384, cut to its form."""
    text = f"{encoded(issuer.header(alg='ES256', kid='p384'))}.{encoded(issuer.claims())}"
    return f"{text}.{encoded(signature_of(P384, 'ES256', text.encode())[:64])}"


def in_der(issuer: TestIssuer) -> str:
    text = f"{encoded(issuer.header(alg='ES256', kid='p256'))}.{encoded(issuer.claims())}"
    return f"{text}.{encoded(P256.sign(text.encode(), ec.ECDSA(hashes.SHA256())))}"


def pss_with_short_salt(issuer: TestIssuer) -> str:
    text = f"{encoded(issuer.header(alg='PS256', kid='free'))}.{encoded(issuer.claims())}"
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), salt_length=0)
    return f"{text}.{encoded(OTHER_RSA.sign(text.encode(), pss, hashes.SHA256()))}"


def repeated(name: str, value: str, of: Any) -> bytes:
    return json.dumps(of).encode()[:-1] + f', "{name}": {value}}}'.encode()


FORGED: dict[str, tuple[str, Forger]] = {
    # algorithms
    "alg none, no signature": ("algorithm", lambda it: f"{encoded(it.header(alg='none'))}.{encoded(it.claims())}."),
    "alg None": ("algorithm", lambda it: f"{encoded(it.header(alg='None'))}.{encoded(it.claims())}."),
    "alg none with the signature of another token": ("algorithm", lambda it: it.token(header={"alg": "none"})),
    "no alg": ("algorithm", lambda it: it.token(header={"alg": None})),
    "alg in a list": ("algorithm", lambda it: it.token(header={"alg": ["RS256"]})),
    "alg in lower case": ("algorithm", lambda it: it.token(header={"alg": "rs256"})),
    "alg that is not allowed here": ("algorithm", lambda it: it.token(header={"alg": "RS512"})),
    "HS256 with the public key in PEM": ("algorithm", lambda it: with_secret(it, PUBLIC_PEM)),
    "HS256 with the modulus": ("algorithm", lambda it: with_secret(it, it.keys[0]["n"].encode())),
    "HS256 with an empty secret": ("algorithm", lambda it: with_secret(it, b"")),
    "HS512": ("algorithm", lambda it: with_secret(it, PUBLIC_PEM, "HS512")),
    "RSA1_5": ("algorithm", lambda it: it.token(header={"alg": "RSA1_5"})),
    # keys
    "the key of somebody else under a known name": (
        "signature", lambda it: signed_by(OTHER_RSA, "RS256", it.header(), it.claims()),
    ),
    "a kid that is not published": ("key", lambda it: it.token(header={"kid": "second"})),
    "a kid that is a path": ("key", lambda it: it.token(header={"kid": "../../../../dev/null"})),
    "a kid that is an address": ("key", lambda it: it.token(header={"kid": f"{EVIL}/keys"})),
    "a kid that is a statement": ("key", lambda it: it.token(header={"kid": "first' OR '1'='1"})),
    "a kid that is a number": ("key", lambda it: it.token(header={"kid": 1})),
    "a kid that is empty": ("key", lambda it: it.token(header={"kid": ""})),
    "a kid with a zero byte": ("key", lambda it: it.token(header={"kid": "first\0"})),
    "no kid where several keys fit": ("key", lambda it: it.token(header={"kid": None, "alg": "PS256"})),
    "a key that is for encryption": ("key", lambda it: signed_by(OTHER_RSA, "RS256", it.header(kid="enc"), it.claims())),
    "a key that is for another alg": ("key", lambda it: signed_by(RSA_KEY, "PS256", it.header(alg="PS256"), it.claims())),
    "jwk in the header": (
        "header", lambda it: signed_by(OTHER_RSA, "RS256", it.header(jwk=jwk_of(OTHER_RSA, "first")), it.claims()),
    ),
    "jku in the header": (
        "header", lambda it: signed_by(OTHER_RSA, "RS256", it.header(jku=f"{EVIL}/keys"), it.claims()),
    ),
    "x5u in the header": (
        "header", lambda it: signed_by(OTHER_RSA, "RS256", it.header(x5u=f"{EVIL}/chain"), it.claims()),
    ),
    "x5c in the header": ("header", lambda it: it.token(header={"x5c": ["MIIB"]})),
    # what is not understood
    "crit": ("header", lambda it: it.token(header={"crit": ["exp"]})),
    "an empty crit": ("header", lambda it: it.token(header={"crit": []})),
    "b64 false": ("header", lambda it: it.token(header={"crit": ["b64"], "b64": False})),
    "zip": ("header", lambda it: it.token(header={"zip": "DEF"})),
    "a token that is to be decrypted": ("header", lambda it: it.token(header={"enc": "A256GCM"})),
    "the typ of a logout token": ("type", lambda it: it.token(header={"typ": "logout+jwt"})),
    "a typ that is a number": ("type", lambda it: it.token(header={"typ": 1})),
    "an event": (
        "type", lambda it: it.token(events={"http://schemas.openid.net/event/backchannel-logout": {}}),
    ),
    "bound to a key of its sender": ("type", lambda it: it.token(cnf={"jkt": "x"})),
    # signatures
    "no signature": ("signature", lambda it: with_part(it.token(), 2, lambda part: "")),
    "a signature cut by a byte": ("signature", lambda it: with_part(it.token(), 2, lambda part: part[:-6])),
    "another payload": ("signature", lambda it: with_part(it.token(), 1, lambda part: encoded(it.claims("boss")))),
    "ES256 in DER": ("signature", in_der),
    "ES256 of zeros": (
        "signature",
        lambda it: f"{encoded(it.header(alg='ES256', kid='p256'))}.{encoded(it.claims())}.{encoded(bytes(64))}",
    ),
    "ES256 with a key of another curve": ("key", of_other_curve),
    "PS256 without salt": ("signature", pss_with_short_salt),
    "EdDSA of zeros": (
        "signature",
        lambda it: f"{encoded(it.header(alg='EdDSA', kid='ed'))}.{encoded(it.claims())}.{encoded(bytes(64))}",
    ),
    # form
    "padding": ("malformed", lambda it: with_part(it.token(), 1, lambda part: part + "=")),
    "base64 that is no base64url": ("malformed", lambda it: with_part(it.token(), 1, lambda part: part[:-1] + "+")),
    "bits beyond the end": ("malformed", lambda it: with_part(it.signed(b'{"alg":"RS256"} ', it.claims()), 0, lambda _: "ey9")),
    "a header that is no JSON": ("malformed", lambda it: it.signed(b'{"alg":"RS256"', it.claims())),
    "a member of the header twice": (
        "malformed", lambda it: it.signed(repeated("alg", '"RS256"', it.header(alg="none")), it.claims()),
    ),
    "a claim twice": ("malformed", lambda it: it.signed(it.header(), repeated("sub", '"boss"', it.claims()))),
    "a claim twice inside another": (
        "malformed",
        lambda it: it.signed(it.header(), repeated("realm_access", '{"roles": [], "roles": ["admin"]}', it.claims())),
    ),
    "claims that are no UTF-8": ("malformed", lambda it: it.signed(it.header(), b'{"iss": "\xff"}')),
    "claims that are a text": ("malformed", lambda it: it.signed(it.header(), b'"iss"')),
    "claims nested without end": ("malformed", lambda it: it.signed(it.header(), b"[" * 9000)),
    "too large": ("too_large", lambda it: it.token(padding="x" * 13_000)),
    # whom and when
    "another issuer": ("issuer", lambda it: it.token(iss=EVIL)),
    "the issuer with a slash": ("issuer", lambda it: it.token(iss=f"{it.url}/")),
    "the issuer in capitals": ("issuer", lambda it: it.token(iss=it.url.upper())),
    "the issuer in a list": ("issuer", lambda it: it.token(iss=[it.url])),
    "no issuer": ("issuer", lambda it: it.token(iss=None)),
    "for somebody else": ("audience", lambda it: it.token(aud="other")),
    "for a name that begins like ours": ("audience", lambda it: it.token(aud="callgate.evil.example")),
    "for a list of others": ("audience", lambda it: it.token(aud=["other", "callgate2"])),
    "for a list in a list": ("audience", lambda it: it.token(aud=[["callgate"]])),
    "for a list with a number": ("audience", lambda it: it.token(aud=["callgate", 1])),
    "for an object": ("audience", lambda it: it.token(aud={"callgate": True})),
    "for an empty list": ("audience", lambda it: it.token(aud=[])),
    "for nobody": ("audience", lambda it: it.token(aud=None)),
    "expired": ("expired", lambda it: it.token(exp=it.claims()["iat"] - 61)),
    "without an end": ("expired", lambda it: it.token(exp=None)),
    "an end that is a text": ("malformed", lambda it: it.token(exp="9999999999")),
    "an end that is true": ("malformed", lambda it: it.token(exp=True)),
    "an end in milliseconds": ("malformed", lambda it: it.token(exp=it.claims()["exp"] * 1000)),
    "an end that is no number": ("malformed", lambda it: it.token(exp=float("nan"))),
    "an end beyond all numbers": ("malformed", lambda it: it.token(exp=float("inf"))),
    "not yet": ("not_yet", lambda it: it.token(nbf=it.claims()["iat"] + 90)),
    "issued tomorrow": ("not_yet", lambda it: it.token(iat=it.claims()["iat"] + 86_400)),
    # who
    "nobody": ("subject", lambda it: it.token(sub=None)),
    "a subject that is empty": ("subject", lambda it: it.token("")),
    "a subject that is a number": ("subject", lambda it: it.token(sub=7)),
    "a subject with a line break": ("subject", lambda it: it.token("ada\nadmin")),
    "a subject with a zero byte": ("subject", lambda it: it.token("ada\0")),
    "a subject with a blank behind": ("subject", lambda it: it.token("ada ")),
    "a subject with a letter that looks like another": ("subject", lambda it: it.token("аda")),
    "a subject written from right to left": ("subject", lambda it: it.token("ada\u202enimda")),
    "a subject that is too long": ("subject", lambda it: it.token("a" * 256)),
}  # fmt: skip
"""Each with the word that metrics have for it."""


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[tuple[TestIssuer, httpx.AsyncClient, Any]]:
    issuer = TestIssuer()
    issuer.keys += [
        jwk_of(P256, "p256"),
        jwk_of(P384, "p384"),
        jwk_of(EDWARDS, "ed"),
        jwk_of(OTHER_RSA, "enc", use="enc"),
        jwk_of(OTHER_RSA, "free"),
        jwk_of(OTHER_RSA, "free too"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        jwk_of(rsa.generate_private_key(public_exponent=65537, key_size=1024), "short"),
        {**jwk_of(P256, "off the curve"), "y": encoded(bytes(32))},
        {**jwk_of(OTHER_RSA, "private"), "d": "AQAB"},
    ]
    async with issuer.served():
        app = create_app(make_config("http://127.0.0.1:9", auth=auth_of(issuer, {"dev": {}, "boss": {"admin": True}})))
        async with serve(app) as url, http_client(url) as client:
            yield issuer, client, app.state.manager


@pytest.mark.parametrize("name", FORGED)
async def test_a_forged_token_is_refused(server: tuple[TestIssuer, httpx.AsyncClient, Any], name: str) -> None:
    issuer, client, manager = server
    reason, forge = FORGED[name]
    count = manager.metrics.sign_ins.of(reason)
    before = count.amount
    answer = await client.get("/v1/models", headers={"authorization": f"Bearer {forge(issuer)}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_token"), answer.text
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert count.amount == before + 1


async def test_none_of_them_had_anything_else_asked_for(server: tuple[TestIssuer, httpx.AsyncClient, Any]) -> None:
    issuer, client, _ = server
    for _, forge in FORGED.values():
        await client.get("/v1/models", headers={"authorization": f"Bearer {forge(issuer)}"})
    assert set(issuer.asked) == {"/.well-known/openid-configuration", "/keys"}
    assert len(FORGED) >= 40


TRUE: dict[str, Forger] = {
    "as it is": lambda it: it.token(),
    "for us and others": lambda it: it.token(aud=["other", "callgate"]),
    "of the typ JWT": lambda it: it.token(header={"typ": "JWT"}),
    "without typ": lambda it: it.token(header={"typ": None}),
    "with a thumbprint of a certificate": lambda it: it.token(header={"x5t": "abc"}),
    "ended within the skew": lambda it: it.token(exp=it.claims()["iat"] - 50),
    "begins within the skew": lambda it: it.token(nbf=it.claims()["iat"] + 50),
    "with a fraction of a second": lambda it: it.token(exp=it.claims()["exp"] + 0.5),
    "ES256": lambda it: signed_by(P256, "ES256", it.header(alg="ES256", kid="p256"), it.claims()),
    "ES256 without kid": lambda it: signed_by(P256, "ES256", it.header(alg="ES256", kid=None), it.claims()),
    "EdDSA": lambda it: signed_by(EDWARDS, "EdDSA", it.header(alg="EdDSA", kid="ed"), it.claims()),
    "PS256": lambda it: signed_by(OTHER_RSA, "PS256", it.header(alg="PS256", kid="free"), it.claims()),
}


@pytest.mark.parametrize("name", TRUE)
async def test_one_that_differs_by_no_more_than_it_may_is_taken(
    server: tuple[TestIssuer, httpx.AsyncClient, Any], name: str
) -> None:
    issuer, client, _ = server
    answer = await client.get("/v1/key", headers={"authorization": f"Bearer {TRUE[name](issuer)}"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["name"] == f"ada@{issuer.url}"


@pytest.mark.parametrize("header", ["api-key", "x-api-key"])
async def test_a_token_is_taken_as_a_bearer_alone(
    server: tuple[TestIssuer, httpx.AsyncClient, Any], header: str
) -> None:
    issuer, client, _ = server
    assert (await client.get("/v1/key", headers={header: issuer.token()})).status_code == 401
