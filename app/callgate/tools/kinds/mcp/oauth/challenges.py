"""Reads the `WWW-Authenticate` headers of a response (RFC 9110, section 11.6.1).

A header may have several challenges, whose parameters are separated by the same commas as they are; a quoted text may have commas,
escaped quotes, and what looks like another parameter.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

MAX_LENGTH: Final = 16_384
"""Characters of a header that are read."""
MAX_SCOPE: Final = 4_096
"""Characters of all scopes together."""
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = re.compile(
    rf'({_WORD})[ \t]*=[ \t]*(?:({_WORD})|"((?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[\t -~\x80-\uffff])*)")[ \t]*(?=,|\Z)'
)
_SCHEME: Final = re.compile(rf"({_WORD})(?: +|(?=[ \t]*(?:,|\Z)))")
_TOKEN68: Final = re.compile(r"([A-Za-z0-9._~+/-]+=*)[ \t]*(?=,|\Z)")
_BETWEEN: Final = re.compile(r"[ \t,]*")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class BadChallenge(ValueError):
    """Raised for a header that is not what RFC 9110 says, and for scopes that are none."""


class Challenge(msgspec.Struct, frozen=True):
    """One challenge: a scheme in small letters, and its parameters by their names in small letters."""

    scheme: str
    parameters: Mapping[str, str] = {}
    token: str = ""
    """What some schemes have in place of parameters."""


def challenges_in(headers: Iterable[str]) -> list[Challenge]:
    """Return the challenges of these headers. Raises `BadChallenge`."""
    return [challenge for header in headers for challenge in _challenges(header)]


def bearer_challenge(headers: Iterable[str]) -> Challenge | None:
    """Return the first challenge that wants a bearer token; None where there is none, or the headers cannot be read."""
    try:
        return next((challenge for challenge in challenges_in(headers) if challenge.scheme == "bearer"), None)
    except BadChallenge:
        return None


def scopes_of(text: str) -> tuple[str, ...]:
    """Return the scopes of a list with spaces, each once. Raises `BadChallenge`."""
    if len(text) > MAX_SCOPE:
        raise BadChallenge(f"scopes of more than {MAX_SCOPE} characters")
    scopes = tuple(dict.fromkeys(text.split(" "))) if text else ()
    if not all(_SCOPE.fullmatch(scope) for scope in scopes if scope):
        raise BadChallenge("scopes with characters that no scope has")
    return tuple(scope for scope in scopes if scope)


def _challenges(header: str) -> list[Challenge]:
    if len(header) > MAX_LENGTH:
        raise BadChallenge(f"a header of more than {MAX_LENGTH} characters")
    challenges: list[Challenge] = []
    parameters: dict[str, str] = {}
    is_separated = True
    at = _end(_BETWEEN, header, 0)
    while at < len(header):
        if (parameter := _PARAMETER.match(header, at)) is not None:
            if not challenges or challenges[-1].token:
                raise BadChallenge("a parameter without a scheme")
            name = parameter[1].lower()
            if name in parameters:
                raise BadChallenge("a parameter that comes twice")
            parameters[name] = parameter[2] or _ESCAPED.sub(r"\1", parameter[3] or "")
            at = parameter.end()
        elif is_separated and (scheme := _SCHEME.match(header, at)) is not None:
            at = scheme.end()
            token = None if _PARAMETER.match(header, at) else _TOKEN68.match(header, at)
            parameters = {}
            challenges.append(Challenge(scheme[1].lower(), parameters, token[1] if token else ""))
            if token is not None:
                at = token.end()
        else:
            raise BadChallenge("not a list of challenges")
        after = _end(_BETWEEN, header, at)
        is_separated = "," in header[at:after]
        at = after
    return challenges


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    assert match is not None, "the pattern may match nothing"
    return match.end()
