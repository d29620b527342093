"""An issuer of a test's own: signs whatever it is told to, and serves its discovery document and its keys on loopback."""

import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.harness.server import serve

AUDIENCE: Final = "callgate"
RSA_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
"""One for all tests: it takes a tenth of a second to find."""
_HASHES: Final = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def encoded(data: bytes | Mapping[str, Any]) -> str:
    """Base64url, of JSON where it is no bytes."""
    if not isinstance(data, bytes):
        data = json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, size: int = 0) -> str:
    return encoded(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def jwk_of(key: PrivateKey, kid: str | None, **more: Any) -> dict[str, Any]:
    """The public half of a key, as a JWK set has it."""
    public = key.public_key()
    match public:
        case rsa.RSAPublicKey():
            numbers = public.public_numbers()
            jwk = {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
        case ec.EllipticCurvePublicKey():
            point = public.public_numbers()
            size = (public.key_size + 7) // 8
            curve = {256: "P-256", 384: "P-384", 521: "P-521"}[public.key_size]
            jwk = {"kty": "EC", "crv": curve, "x": number(point.x, size), "y": number(point.y, size)}
        case _:
            jwk = {"kty": "OKP", "crv": "Ed25519", "x": encoded(public.public_bytes_raw())}
    return {**jwk, **({} if kid is None else {"kid": kid}), "use": "sig", **more}


def signature_of(key: PrivateKey, algorithm: str, text: bytes) -> bytes:
    match key:
        case rsa.RSAPrivateKey():
            hash = _HASHES[algorithm[2:]]
            pss = padding.PSS(padding.MGF1(hash), salt_length=hash.digest_size)
            return key.sign(text, pss if algorithm.startswith("PS") else padding.PKCS1v15(), hash)
        case ec.EllipticCurvePrivateKey():
            size = (key.key_size + 7) // 8
            r, s = decode_dss_signature(key.sign(text, ec.ECDSA(_HASHES[algorithm[2:]])))
            return r.to_bytes(size, "big") + s.to_bytes(size, "big")
        case _:
            return key.sign(text)


class TestIssuer:
    """Its address is known once it is served. `keys` and `discovery` may be changed meanwhile."""

    __test__ = False

    def __init__(self) -> None:
        self.url = "https://login.example"
        self.private: PrivateKey = RSA_KEY
        self.kid: str | None = "first"
        self.algorithm = "RS256"
        self.keys: list[dict[str, Any]] = [jwk_of(RSA_KEY, "first", alg="RS256")]
        self.discovery: dict[str, Any] = {}
        """What its discovery document has in place of what is right."""
        self.is_away = False
        self.asked: list[str] = []
        """The paths that were asked for."""

    def claims(self, subject: str = "ada", *groups: str, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        said = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": subject,
            "iat": now,
            "nbf": now,
            "exp": now + 600,
            "groups": list(groups or ["dev"]),
        }
        return {name: value for name, value in (said | more).items() if value is not None}

    def header(self, **more: Any) -> dict[str, Any]:
        said = {"alg": self.algorithm, "typ": "at+jwt", "kid": self.kid}
        return {name: value for name, value in (said | more).items() if value is not None}

    def token(self, subject: str = "ada", *groups: str, header: Mapping[str, Any] = {}, **claims: Any) -> str:
        """A token of somebody; a claim or a member of the header that is None is left out."""
        return self.signed(self.header(**header), self.claims(subject, *groups, **claims))

    def signed(self, header: Mapping[str, Any] | bytes, claims: Mapping[str, Any] | bytes) -> str:
        text = f"{encoded(header)}.{encoded(claims)}"
        return f"{text}.{encoded(signature_of(self.private, self.algorithm, text.encode()))}"

    def rotate(self, private: PrivateKey, kid: str, algorithm: str, *, keep: bool = True) -> None:
        """Sign with another key from now on; the old ones stay published, or not."""
        self.private = private
        self.kid = kid
        self.algorithm = algorithm
        self.keys = [*(self.keys if keep else []), jwk_of(private, kid)]

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator["TestIssuer"]:
        routes = [
            Route("/.well-known/openid-configuration", self._discovery),
            Route("/keys", self._keys),
            Route("/{path:path}", self._other),
        ]
        async with serve(Starlette(routes=routes)) as url:
            self.url = url
            yield self

    async def _discovery(self, request: Request) -> Response:
        said = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }
        return self._answer(request, said | self.discovery)

    async def _keys(self, request: Request) -> Response:
        return self._answer(request, {"keys": self.keys})

    async def _other(self, request: Request) -> Response:
        return self._answer(request, {})

    def _answer(self, request: Request, said: dict[str, Any]) -> Response:
        self.asked.append(request.url.path)
        if self.is_away:
            return Response(status_code=503)
        return JSONResponse(said)


def auth_of(issuer: TestIssuer, groups: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The `auth` of a config that takes its tokens."""
    return {"oidc": {"issuer": issuer.url, "audience": AUDIENCE, "groups": groups or {"dev": {}}, **more}}
