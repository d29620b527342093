"""Credentials that look like tokens, and documents of an issuer: refused, or read; and nothing is taken that no key has signed."""

import contextlib

from callgate.access.oidc.issuer import NotFetched, read_discovery
from callgate.access.oidc.signing_keys import NoSigningKeys, SigningKeys
from callgate.access.oidc.tokens import TokenRules, taken_apart, verified
from callgate.callers.tokens import TokenRefused

ISSUER = "https://login.example"
RULES = TokenRules(ISSUER, frozenset({"us"}), frozenset({"RS256", "PS256", "ES256", "EdDSA"}), 60.0)
JWKS = (
    b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},'
    b' {"kty": "EC", "crv": "P-256", "kid": "ec", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",'
    b' "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}'
)
KEYS = SigningKeys.of_document(JWKS)


def run(data: bytes) -> None:
    try:
        keys = SigningKeys.of_document(data)
    except NoSigningKeys:
        pass
    else:
        assert all(key.public is not None for key in keys.keys)
    with contextlib.suppress(NotFetched):
        read_discovery(data, ISSUER)
    try:
        token = taken_apart(data.decode("latin-1"), RULES)
    except TokenRefused as refused:
        assert refused.status == 401  # noqa: PT017 - one of two good ends
        return
    for key in KEYS.keys:
        if key.is_for(token.algorithm):
            try:
                verified(token, key, RULES, 1e9)
            except TokenRefused:
                continue
            raise AssertionError("it was taken, and nobody has signed it")
