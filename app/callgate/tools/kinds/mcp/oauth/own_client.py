"""Which client Callgate is at an authorization server, and how it proves that at the token endpoint."""

import base64
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from callgate.tools.kinds.mcp.logins import document_address
from callgate.tools.kinds.mcp.oauth.discovery import CannotLogIn
from callgate.tools.kinds.mcp.oauth.documents import ServerMetadata, UnusableDocument, is_this_machine, registration
from callgate.tools.kinds.mcp.oauth.errand import Errand, OutOfReach
from callgate.tools.kinds.mcp.oauth.settings import OAuthSection

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

NONE: Final = "none"
BASIC: Final = "client_secret_basic"
POST: Final = "client_secret_post"
ASSERTION: Final = "private_key_jwt"
ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_SECONDS: Final = 300
SKEW_SECONDS: Final = 120
"""How far the clocks of two machines may be apart."""


class OwnClient(msgspec.Struct, frozen=True, kw_only=True):
    """The client that Callgate is at one issuer."""

    id: str
    issuer: str
    """The only one that hears of it."""
    method: str = NONE
    """How it proves itself at the token endpoint."""
    secret: str = ""
    """The secret of a registration. One that an operator has configured is not in here."""
    is_configured: bool = False


def configured_client(section: OAuthSection, server: ServerMetadata) -> OwnClient | None:
    """Return the client of the config; None where it has none. Raises `CannotLogIn` for an issuer that it does not belong to."""
    if section.client_id is None:
        return None
    if section.issuer is not None and server.issuer != section.issuer:
        raise CannotLogIn(f"the client of the entry belongs to {section.issuer}, and is not used at {server.issuer}")
    return OwnClient(
        id=section.client_id,
        issuer=server.issuer,
        method=_method_of(section, server.token_endpoint_auth_methods_supported),
        is_configured=True,
    )


def document_client(public_url: str | None, server: ServerMetadata) -> OwnClient | None:
    """Return the client whose id is the address of our own document; None where that is not possible."""
    if public_url is None or not public_url.startswith("https://") or not server.client_id_metadata_document_supported:
        return None
    return OwnClient(id=document_address(public_url), issuer=server.issuer)


async def registered_client(errand: Errand, server: ServerMetadata, redirect_uri: str, name: str) -> OwnClient:
    """Register with an authorization server. Raises `CannotLogIn`."""
    if server.registration_endpoint is None:
        raise CannotLogIn(
            f"{server.issuer} takes no client that it does not know: register one there by hand, with the redirect address"
            f" {redirect_uri}, and put `client_id` and `issuer` into the entry"
        )
    methods = server.token_endpoint_auth_methods_supported
    method_wish = next((method for method in (NONE, BASIC, POST) if method in (methods or (BASIC,))), NONE)
    wish = {
        "client_name": name,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method_wish,
        "application_type": "native" if is_loopback(redirect_uri) else "web",
    }
    try:
        answer = await errand.post_json(server.registration_endpoint, wish)
        if not answer.is_good:
            raise CannotLogIn(f"{server.issuer} did not register Callgate as a client (HTTP {answer.status})")
        client = registration(answer.body)
    except (UnusableDocument, OutOfReach) as error:
        raise CannotLogIn(f"{server.issuer} did not register Callgate as a client: {error}") from None
    method = client.token_endpoint_auth_method or method_wish
    if method not in (NONE, BASIC, POST):
        raise CannotLogIn(f"{server.issuer} registered Callgate with a way to prove itself that it does not have")
    if method != NONE and not client.client_secret:
        raise CannotLogIn(f"{server.issuer} registered Callgate without the secret that it wants")
    secret = client.client_secret if method != NONE else None
    return OwnClient(id=client.client_id, issuer=server.issuer, method=method, secret=secret or "")


def is_loopback(redirect_uri: str) -> bool:
    from urllib.parse import urlsplit

    parts = urlsplit(redirect_uri)
    return parts.scheme == "http" and is_this_machine(parts.hostname or "")


def proof(client: OwnClient, section: OAuthSection) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the fields and the headers that prove the client at the token endpoint of its issuer. Raises `CannotLogIn`."""
    secret = client.secret
    if client.is_configured:
        if section.client_id != client.id or section.issuer not in (None, client.issuer):
            raise CannotLogIn("the client of the entry is another than the one that logged in")
        if section.client_secret is not None:
            secret = section.client_secret.get_secret_value()
    match client.method:
        case "client_secret_basic":
            pair = f"{quote(client.id, safe='')}:{quote(secret, safe='')}"
            return {}, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        case "client_secret_post":
            return {"client_id": client.id, "client_secret": secret}, {}
        case "private_key_jwt":
            assert section.private_key is not None, "configured so"
            signed = assertion(client.id, client.issuer, section.private_key.get_secret_value())
            return {"client_id": client.id, "client_assertion_type": ASSERTION_TYPE, "client_assertion": signed}, {}
        case _:
            return {"client_id": client.id}, {}


def _method_of(section: OAuthSection, supported: list[str] | None) -> str:
    if section.private_key is not None:
        return ASSERTION
    if section.client_secret is None:
        return NONE
    if supported is not None and BASIC not in supported and POST in supported:
        return POST
    return BASIC


def assertion(client_id: str, issuer: str, pem: str) -> str:
    """Return a JWT that proves a client (RFC 7523), good for a few minutes and once. Raises `CannotLogIn`."""
    key = private_key(pem)
    now = int(time.time())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "jti": secrets.token_urlsafe(16),
        "iat": now - SKEW_SECONDS,
        "exp": now + ASSERTION_SECONDS,
    }
    text = f"{_part({'alg': algorithm(key), 'typ': 'JWT'})}.{_part(claims)}"
    return f"{text}.{_unpadded(_signature(key, text.encode()))}"


def private_key(pem: str) -> "RSAPrivateKey | EllipticCurvePrivateKey":
    """Raises `CannotLogIn` where it is no key that can be used. Its text says nothing of the key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CannotLogIn("`private_key` is no private key in PEM without a password") from None
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= 2048:
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise CannotLogIn("`private_key` is neither an RSA key of 2048 bits or more nor one of P-256")


def algorithm(key: object) -> str:
    from cryptography.hazmat.primitives.asymmetric import rsa

    return "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"


def _signature(key: "RSAPrivateKey | EllipticCurvePrivateKey", text: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    numbers = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256())))
    return b"".join(number.to_bytes(32, "big") for number in numbers)


def _part(value: Mapping[str, object]) -> str:
    return _unpadded(msgspec.json.encode(value))


def _unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
