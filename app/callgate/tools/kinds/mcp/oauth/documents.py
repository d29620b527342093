"""The documents of OAuth that others write: metadata, registrations, tokens, refusals. Each is read through a door, or not at all."""

import ipaddress
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from callgate.tools.kinds.mcp.oauth.challenges import BadChallenge, scopes_of
from callgate.untrusted.doors import Door, Opened, Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader

T = TypeVar("T")

MAX_BYTES: Final = 64 * 1024
MAX_ADDRESS: Final = 2_048
MAX_CREDENTIAL: Final = 32 * 1024
"""Characters of a token: more does not fit the headers that servers take."""
LONGEST_LIFE: Final = 365 * 86_400.0
DOCUMENT: Final = Door(name="a document of OAuth", bytes=MAX_BYTES, values=4_000, uncounted=0, depth=32)


class UnusableDocument(ValueError):
    """Raised for a document that cannot be used. Its text is ours, and says nothing of what stood there."""


class ResourceMetadata(msgspec.Struct, frozen=True):
    """What a tool server says of itself (RFC 9728)."""

    resource: str
    authorization_servers: list[str] = []
    scopes_supported: list[str] | None = None


class ServerMetadata(msgspec.Struct, frozen=True):
    """What an authorization server says of itself (RFC 8414)."""

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    token_endpoint_auth_signing_alg_values_supported: list[str] | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None


class Registration(msgspec.Struct, frozen=True):
    """The answer to a registration (RFC 7591)."""

    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


class TokenAnswer(msgspec.Struct, frozen=True):
    """The answer of a token endpoint. An `id_token` beside it is not read."""

    access_token: str
    token_type: str
    expires_in: Any = None
    refresh_token: str | None = None
    scope: str | None = None

    def life(self) -> float | None:
        """Return the seconds for which the token is good; None where that is not said in a way that can be believed."""
        seconds = self.expires_in
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            return None
        return float(min(seconds, LONGEST_LIFE))


class TokenRefusal(msgspec.Struct, frozen=True):
    """The answer of a token endpoint that gives none."""

    error: str


_read_resource = json_reader(ResourceMetadata)
_read_server = json_reader(ServerMetadata)
_read_registration = json_reader(Registration)
_read_token = json_reader(TokenAnswer)
_read_refusal = json_reader(TokenRefusal)


def resource_metadata(body: bytes) -> ResourceMetadata:
    """Raises `UnusableDocument`."""
    return _read(_read_resource, body, "what the server says of itself")


def server_metadata(body: bytes) -> ServerMetadata:
    """Raises `UnusableDocument`."""
    return _read(_read_server, body, "what the authorization server says of itself")


def registration(body: bytes) -> Registration:
    """Raises `UnusableDocument`."""
    client = _read(_read_registration, body, "the answer to the registration")
    if not _is_credential(client.client_id) or not _is_credential(client.client_secret or "-"):
        raise UnusableDocument("the answer to the registration has no usable client")
    return client


def token_answer(body: bytes) -> TokenAnswer:
    """Raises `UnusableDocument`."""
    answer = _read(_read_token, body, "the answer of the token endpoint")
    if answer.token_type.lower() != "bearer":
        raise UnusableDocument("the token endpoint gave a token that is no bearer token")
    if not _is_credential(answer.access_token) or not _is_credential(answer.refresh_token or "-"):
        raise UnusableDocument("the token endpoint gave something that cannot be sent as a token")
    try:
        scopes_of(answer.scope or "")
    except BadChallenge as error:
        raise UnusableDocument(f"the token endpoint gave {error}") from None
    return answer


def refusal(body: bytes) -> str:
    """Return the code of a refusal; empty where there is none."""
    try:
        return _read(_read_refusal, body, "a refusal").error
    except UnusableDocument:
        return ""


def _read(reader: Callable[[Opened], T], body: bytes, what: str) -> T:
    try:
        return reader(Untrusted(body, DOCUMENT).open())
    except READ_ERRORS:
        raise UnusableDocument(f"{what} cannot be read") from None


def _is_credential(text: str) -> bool:
    return 0 < len(text) <= MAX_CREDENTIAL and text.isascii() and text.isprintable() and " " not in text


def checked_address(url: str, *, like: str = "") -> str:
    """Return an address that may be asked or opened: with https, or on this machine; or with the scheme, host and port of `like`.
    Raises `UnusableDocument`."""
    if not 0 < len(url) <= MAX_ADDRESS or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise UnusableDocument("an address that cannot be used")
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise UnusableDocument("an address that cannot be used") from None
    if not host or parts.fragment or parts.username is not None or parts.password is not None:
        raise UnusableDocument("an address that cannot be used")
    if parts.scheme == "https" or (
        parts.scheme == "http" and (is_this_machine(host) or (like and origin(url) == origin(like)))
    ):
        return url
    raise UnusableDocument("an address without https")


def is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises `ValueError`."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").rstrip("."), port


def covers(resource: str, url: str) -> bool:
    """Return whether a token for a resource may go to an address: to its own origin, at its own path or below it."""
    try:
        if origin(resource) != origin(url):
            return False
        wide = urlsplit(resource)
        narrow = urlsplit(url)
    except ValueError:
        return False
    if wide.query and wide.query != narrow.query:
        return False
    path = wide.path.rstrip("/")
    return narrow.path.rstrip("/") == path or narrow.path.startswith(f"{path}/")
