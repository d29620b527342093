"""Finds out where to log in to a tool server: from its challenge to the metadata of its authorization server, in the protocol's order."""

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from callgate.tools.kinds.mcp.oauth.challenges import BadChallenge, bearer_challenge, scopes_of
from callgate.tools.kinds.mcp.oauth.documents import (
    ResourceMetadata,
    ServerMetadata,
    UnusableDocument,
    checked_address,
    covers,
    resource_metadata,
    server_metadata,
)
from callgate.tools.kinds.mcp.oauth.errand import Errand, OutOfReach

RESOURCE: Final = "/.well-known/oauth-protected-resource"
SERVER: Final = "/.well-known/oauth-authorization-server"
OPENID: Final = "/.well-known/openid-configuration"
PROBE: Final = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
PROBE_HEADERS: Final = {"Accept": "application/json, text/event-stream"}
S256: Final = "S256"


class CannotLogIn(Exception):
    """Raised where a login is impossible, with a reason for the operator. It quotes nothing but addresses that were checked."""


class LoginPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where and for what to log in."""

    resource: str
    """What the tokens are for."""
    server: ServerMetadata
    scopes: tuple[str, ...] | None
    """Those that the challenge names, else those of the resource; None where neither says any."""
    is_guessed: bool = False
    """Whether there was no metadata, so that all of it is what servers of 2025-03-26 have."""


async def discovered(errand: Errand, url: str, *, issuer: str | None, legacy: bool) -> LoginPlace:
    """Ask the server without a token what it wants, and follow that. Raises `CannotLogIn`."""
    try:
        probe = await errand.post_json(url, PROBE, PROBE_HEADERS)
    except OutOfReach as error:
        raise CannotLogIn(f"the server did not answer: {error}") from None
    challenges = probe.challenges if probe.status == 401 else ()
    return await discovered_from(errand, url, challenges, issuer=issuer, legacy=legacy)


async def discovered_from(
    errand: Errand, url: str, challenges: Sequence[str], *, issuer: str | None, legacy: bool
) -> LoginPlace:
    """Follow a challenge that has come. Raises `CannotLogIn`."""
    challenged_scopes = challenged(challenges)
    metadata = await resource_of(errand, url, challenges)
    if metadata is None and issuer is None:
        if not legacy:
            raise CannotLogIn(
                "the server does not say where to log in (it has no protected resource metadata): name the `issuer`, or say"
                " `legacy: on` if it is one of 2025-03-26"
            )
        return await _legacy(errand, url, challenged_scopes)
    resource = url.partition("#")[0]
    scopes = challenged_scopes
    if metadata is not None:
        resource = metadata.resource
        issuer = _issuer_of(metadata, issuer)
        if scopes is None and metadata.scopes_supported is not None:
            scopes = _scopes(" ".join(metadata.scopes_supported))
    assert issuer is not None, "one of the two has named it"
    return LoginPlace(resource=resource, server=await server_of(errand, issuer), scopes=scopes)


def challenged(challenges: Sequence[str]) -> tuple[str, ...] | None:
    """Return the scopes that a challenge names. Raises `CannotLogIn`."""
    challenge = bearer_challenge(challenges)
    if challenge is None or "scope" not in challenge.parameters:
        return None
    return _scopes(challenge.parameters["scope"])


def _scopes(text: str) -> tuple[str, ...]:
    try:
        return scopes_of(text)
    except BadChallenge as error:
        raise CannotLogIn(f"the server asks for {error}") from None


async def resource_of(errand: Errand, url: str, challenges: Sequence[str]) -> ResourceMetadata | None:
    """Return what the server says of itself; None where it says nothing. Raises `CannotLogIn`."""
    challenge = bearer_challenge(challenges)
    named = challenge.parameters.get("resource_metadata") if challenge is not None else None
    for place in [named] if named else _resource_places(url):
        try:
            answer = await errand.get(checked_address(place, like=url))
            if not answer.is_good:
                continue
            metadata = resource_metadata(answer.body)
        except (UnusableDocument, OutOfReach) as error:
            raise CannotLogIn(f"what the server says of itself cannot be used: {error}") from None
        if not covers(metadata.resource, url):
            raise CannotLogIn("what the server says of itself is about another resource than its address")
        return metadata
    return None


def _issuer_of(metadata: ResourceMetadata, issuer_of_entry: str | None) -> str:
    if issuer_of_entry is not None:
        if issuer_of_entry not in metadata.authorization_servers:
            raise CannotLogIn(
                f"the server does not log in at {issuer_of_entry} (any more), which its entry names as `issuer`"
            )
        return issuer_of_entry
    if not metadata.authorization_servers:
        raise CannotLogIn("the server names no authorization server: name the `issuer`")
    return metadata.authorization_servers[0]


async def server_of(errand: Errand, issuer: str) -> ServerMetadata:
    """Return what an authorization server says of itself. Raises `CannotLogIn`."""
    try:
        checked_address(issuer)
    except UnusableDocument as error:
        raise CannotLogIn(f"the authorization server has {error}") from None
    for place in _server_places(issuer):
        try:
            answer = await errand.get(place)
            if not answer.is_good:
                continue
            return _checked(server_metadata(answer.body), issuer)
        except (UnusableDocument, OutOfReach) as error:
            raise CannotLogIn(f"{issuer} cannot be logged in at: {error}") from None
    raise CannotLogIn(f"{issuer} says nothing of itself (no authorization server metadata)")


def _checked(metadata: ServerMetadata, issuer: str) -> ServerMetadata:
    if metadata.issuer != issuer:
        raise UnusableDocument("what it says of itself names another issuer")
    endpoints = (metadata.authorization_endpoint, metadata.registration_endpoint, metadata.revocation_endpoint)
    for endpoint in (metadata.token_endpoint, *filter(None, endpoints)):
        checked_address(endpoint)
    _scopes(" ".join(metadata.scopes_supported or ()))
    return metadata


def demand_pkce(place: LoginPlace) -> None:
    """Raise `CannotLogIn` where a code could be used by whoever sees it."""
    if S256 not in (place.server.code_challenge_methods_supported or ()) and not place.is_guessed:
        raise CannotLogIn(
            f"{place.server.issuer} does not say that it supports PKCE with S256, without which nobody is sent there"
        )


async def _legacy(errand: Errand, url: str, scopes: tuple[str, ...] | None) -> LoginPlace:
    base = _at(url, "")
    try:
        checked_address(base)
        answer = await errand.get(base + SERVER)
        if answer.is_good:
            metadata = server_metadata(answer.body)
            issuer = metadata.issuer if metadata.issuer == f"{base}/" else base
            return LoginPlace(resource=url.partition("#")[0], server=_checked(metadata, issuer), scopes=scopes)
    except (UnusableDocument, OutOfReach) as error:
        raise CannotLogIn(f"{base} cannot be logged in at: {error}") from None
    guessed = ServerMetadata(
        issuer=base,
        authorization_endpoint=f"{base}/authorize",
        token_endpoint=f"{base}/token",
        registration_endpoint=f"{base}/register",
    )
    return LoginPlace(resource=url.partition("#")[0], server=guessed, scopes=scopes, is_guessed=True)


def _resource_places(url: str) -> Iterator[str]:
    path = urlsplit(url).path.rstrip("/")
    if path:
        yield _at(url, RESOURCE + path)
    yield _at(url, RESOURCE)


def _server_places(issuer: str) -> Iterator[str]:
    path = urlsplit(issuer).path.rstrip("/")
    yield _at(issuer, SERVER + path)
    yield _at(issuer, OPENID + path)
    if path:
        yield _at(issuer, path + OPENID)


def _at(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
