"""Reads the tokens of an issuer (JWT, RFC 7519; RFC 8725 for what has gone wrong with them). No I/O: keys and time are put in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from callgate.access.oidc.base64url import NotBase64Url, from_base64url
from callgate.access.oidc.signing_keys import MOST_KID_CHARS, SCHEMES, SigningKey
from callgate.callers.tokens import TokenEnded, TokenRefused
from callgate.untrusted.doors import Door, open_text
from callgate.untrusted.readers import READ_ERRORS, pairs_reader

TOKEN_BYTES: Final = 16 * 1024
MOST_SUBJECT_CHARS: Final = 255
MOST_SHOWN_CHARS: Final = 100
MOST_SECONDS: Final = 1e11
"""A later moment is no date: milliseconds, perhaps."""

TOKEN: Final = Door(name="a token", bytes=TOKEN_BYTES)

_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})
_BRINGS_A_KEY: Final = ("jku", "jwk", "x5u", "x5c")
"""Members of a header by which a token names the key that it wants to be checked with."""
_NOT_UNDERSTOOD: Final = ("crit", "b64", "zip", "enc")


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to say."""

    issuer: str
    audiences: frozenset[str]
    algorithms: frozenset[str]
    skew: float
    subject: str = "sub"
    """The claim of that name, or the path to it."""
    name: str = "name"
    groups: str = "groups"


@dataclass(frozen=True, slots=True)
class SignedToken:
    """A token that was taken apart. Nothing of it is verified."""

    algorithm: str
    kid: str | None
    signed: bytes
    claims: Mapping[str, Any]
    signature: bytes


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """Who somebody is, by a verified token."""

    subject: str
    shown: str
    groups: tuple[str, ...]
    ends: float
    """From when on the token counts no more, in seconds since the epoch."""
    has_more_groups: bool = False
    """Its issuer left his groups out, because there are too many."""


def taken_apart(token: str, rules: TokenRules) -> SignedToken:
    """Read a token. Raises `TokenRefused` where it is none of the issuer's, as far as its text tells."""
    if len(token) > TOKEN_BYTES:
        raise TokenRefused(f"it has more than {TOKEN_BYTES:,} characters", "too_large")
    parts = token.split(".")
    if len(parts) != 3:
        raise TokenRefused("it has not three parts", "malformed")
    try:
        header, payload, signature = map(from_base64url, parts)
    except NotBase64Url:
        raise TokenRefused("one of its parts is no base64url", "malformed") from None
    fields = _object_in(header, "header")
    for name in (*_BRINGS_A_KEY, *_NOT_UNDERSTOOD):
        if name in fields:
            raise TokenRefused(f"its header has `{name}`", "header")
    kind = fields.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused("its `typ` is not that of an access token", "type")
    algorithm = fields.get("alg")
    if not isinstance(algorithm, str) or algorithm not in rules.algorithms or algorithm not in SCHEMES:
        raise TokenRefused("its `alg` is none of those that are allowed here", "algorithm")
    kid = fields.get("kid")
    if kid is not None and (not isinstance(kid, str) or not 0 < len(kid) <= MOST_KID_CHARS):
        raise TokenRefused("its `kid` is no name of a key", "key")
    claims = _object_in(payload, "payload")
    if claims.get("iss") != rules.issuer:
        raise TokenRefused("its `iss` is another issuer", "issuer")
    return SignedToken(algorithm, kid, token[: token.rindex(".")].encode(), claims, signature)


def verified(token: SignedToken, key: SigningKey, rules: TokenRules, now: float) -> TokenIdentity:
    """Return who a token says somebody is, if it was signed with a key and says all that the rules ask for. Raises
    `TokenRefused`."""
    if not key.has_signed(token.algorithm, token.signed, token.signature):
        raise TokenRefused("its signature is not of its issuer", "signature")
    claims = token.claims
    if rules.audiences.isdisjoint(_audiences_in(claims)):
        raise TokenRefused("its `aud` names others", "audience")
    for name, why in _OF_OTHER_USE.items():
        if name in claims:
            raise TokenRefused(f"it has `{name}`: {why}", "type")
    ends = _moment(claims, "exp")
    if ends is None:
        raise TokenRefused("it has no `exp`", "expired")
    if now >= ends + rules.skew:
        raise TokenEnded
    begins = _moment(claims, "nbf")
    if begins is not None and now < begins - rules.skew:
        raise TokenRefused("its `nbf` is yet to come", "not_yet")
    issued = _moment(claims, "iat")
    if issued is not None and now < issued - rules.skew:
        raise TokenRefused("its `iat` is yet to come", "not_yet")
    subject = _at(claims, rules.subject)
    if not _is_subject(subject):
        raise TokenRefused(f"its `{rules.subject}` names nobody", "subject")
    return TokenIdentity(
        subject,
        _shown(claims, rules, subject),
        _groups_in(claims, rules),
        ends + rules.skew,
        has_more_groups=_has_more_groups(claims, rules),
    )


_OF_OTHER_USE: Final[Mapping[str, str]] = {
    "events": "it tells of an event, such as that somebody signed out",
    "cnf": "it is bound to a key that its sender has to prove",
}


def _object_in(part: bytes, what: str) -> dict[str, Any]:
    try:
        value = _read_object(open_text(part.decode(), TOKEN))
    except READ_ERRORS:
        raise TokenRefused(f"its {what} is no JSON, or has a member twice", "malformed") from None
    if not isinstance(value, dict):
        raise TokenRefused(f"its {what} is no object", "malformed")
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member stands twice")
    return members


_read_object: Callable[..., Any] = pairs_reader(_once_each)


def _audiences_in(claims: Mapping[str, Any]) -> list[str]:
    """Return whom a token is for. Raises where it does not say so in a way that is known."""
    audience = claims.get("aud")
    if isinstance(audience, str):
        return [audience]
    if isinstance(audience, list) and audience and all(isinstance(name, str) for name in audience):
        return audience
    raise TokenRefused("its `aud` is no text and no list of texts", "audience")


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a date of a token; None where it has none. Raises where it is no date."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"its `{name}` is no number", "malformed")
    if not 0 <= value < MOST_SECONDS:  # neither is NaN
        raise TokenRefused(f"its `{name}` is no date", "malformed")
    return float(value)


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """Return the claim of a name, which may have dots and slashes; else what is at the path."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def _is_subject(value: Any) -> bool:
    """OpenID Connect has at most 255 characters of ASCII; what cannot be seen could be taken for another."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MOST_SUBJECT_CHARS
        and value.isascii()
        and value.isprintable()
        and value == value.strip()
    )


def _shown(claims: Mapping[str, Any], rules: TokenRules, subject: str) -> str:
    """Return what people call him. A service has no name, and is called by its subject."""
    for path in (rules.name, "preferred_username", "email"):
        value = _at(claims, path)
        if isinstance(value, str):
            shown = "".join(letter if letter.isprintable() else " " for letter in value[:MOST_SHOWN_CHARS])
            if shown.strip():
                return " ".join(shown.split())
    return subject


def _groups_in(claims: Mapping[str, Any], rules: TokenRules) -> tuple[str, ...]:
    value = _at(claims, rules.groups)
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(name for name in value if isinstance(name, str))
    return ()


def _has_more_groups(claims: Mapping[str, Any], rules: TokenRules) -> bool:
    """Return whether groups are left out, and to be asked for elsewhere, as Entra has it."""
    elsewhere = claims.get("_claim_names")
    return (isinstance(elsewhere, dict) and rules.groups in elsewhere) or claims.get("hasgroups") is True
