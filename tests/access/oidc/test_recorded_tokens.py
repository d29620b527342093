"""Tokens as well-known issuers write them: their claims and headers, signed by a key of ours."""

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest

from callgate.access.oidc.building import group_rights, rules_of
from callgate.access.oidc.issuer import Issuer
from callgate.access.oidc.people import NoGroup, People
from callgate.callers.caller import Caller, owner_name, words_for
from callgate.callers.tokens import TokenRefused
from callgate.config.schema.whole import Config
from tests.harness.issuer import RSA_KEY, TestIssuer, jwk_of

pytestmark = pytest.mark.anyio

TENANT = "11111111-2222-3333-4444-555555555555"
APPLICATION = "66666666-7777-8888-9999-000000000000"


@dataclass(frozen=True)
class Recorded:
    """What an issuer's token has, without its dates, and the settings of docs/oidc.md for it."""

    header: dict[str, Any]
    claims: dict[str, Any]
    settings: dict[str, Any]
    name: str
    """The caller's."""
    shown: str
    group: str


ISSUERS = {
    "Keycloak": Recorded(
        {"alg": "RS256", "typ": "JWT", "kid": "FJ86GcF3jTbNLOco4NvZkUCIUmfYCqoqtOQeMfbhNlE"},
        {
            "jti": "onrtac:8a3c", "iss": "https://keycloak.example.com/realms/staff", "aud": ["callgate", "account"],
            "sub": "1f7a2c5e-5c0e-4cf0-a4ae-3a2c8d1e9b11", "typ": "Bearer", "azp": "callgate-page",
            "sid": "b5b2f9a1", "acr": "1", "allowed-origins": ["https://callgate.example.com"],
            "realm_access": {"roles": ["offline_access", "uma_authorization", "default-roles-staff"]},
            "resource_access": {"account": {"roles": ["manage-account", "view-profile"]}},
            "scope": "openid profile email", "email_verified": True, "name": "Ada Lovelace",
            "groups": ["/platform/oncall", "/platform"], "preferred_username": "ada", "given_name": "Ada",
            "family_name": "Lovelace", "email": "ada@example.com",
        },
        {"audience": "callgate", "groups": {"/platform": {}, "/support": {}}},
        "1f7a2c5e-5c0e-4cf0-a4ae-3a2c8d1e9b11@keycloak.example.com/realms/staff", "Ada Lovelace", "/platform",
    ),
    "Keycloak, roles of the realm": Recorded(
        {"alg": "RS256", "typ": "JWT", "kid": "FJ86"},
        {
            "iss": "https://keycloak.example.com/realms/staff", "aud": "account", "sub": "ada", "typ": "Bearer",
            "realm_access": {"roles": ["offline_access", "platform"]}, "preferred_username": "ada",
        },
        {"audience": ["account"], "claims": {"groups": "realm_access.roles"}, "groups": {"platform": {}}},
        "ada@keycloak.example.com/realms/staff", "ada", "platform",
    ),
    "Entra ID": Recorded(
        {"typ": "JWT", "alg": "RS256", "x5t": "H9nj5AOSswMphg1SFx7jaV-lB9w", "kid": "H9nj5AOSswMphg1SFx7jaV-lB9w"},
        {
            "aud": APPLICATION, "iss": f"https://login.microsoftonline.com/{TENANT}/v2.0", "aio": "ATQAy/8TAAAA",
            "azp": APPLICATION, "azpacr": "0", "name": "Ada Lovelace", "oid": "aaaaaaaa-0000-1111-2222-bbbbbbbbbbbb",
            "preferred_username": "ada@example.com", "rh": "0.ARoAv4j5cv", "roles": ["Callgate.User", "Callgate.Admin"],
            "scp": "use", "sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ", "tid": TENANT, "uti": "fqiBqXLPj0", "ver": "2.0",
        },
        {
            "audience": APPLICATION, "claims": {"sub": "oid", "groups": "roles"},
            "groups": {"Callgate.Admin": {}, "Callgate.User": {}},
        },
        f"aaaaaaaa-0000-1111-2222-bbbbbbbbbbbb@login.microsoftonline.com/{TENANT}/v2.0", "Ada Lovelace", "Callgate.Admin",
    ),
    "Okta": Recorded(
        {"kid": "mB2MAyKSn555isd0EbdhKx6nkyAi9xLCTu7e", "alg": "RS256"},
        {
            "ver": 1, "jti": "AT.0mP4JKAZX1iACIT4vbEDF7LpvDVjxypPMf0D7uX39RE",
            "iss": "https://acme.okta.com/oauth2/aus1abcd", "aud": "api://callgate", "cid": "0oa1abcd",
            "uid": "00uid4BxXw6I6TV4m0g3", "scp": ["openid", "profile"], "auth_time": 1700000000,
            "sub": "ada@example.com", "groups": ["Everyone", "callgate-admins"],
        },
        {
            "audience": "api://callgate", "claims": {"sub": "uid", "name": "sub"},
            "groups": {"callgate-admins": {}, "Everyone": {}},
        },
        "00uid4BxXw6I6TV4m0g3@acme.okta.com/oauth2/aus1abcd", "ada@example.com", "callgate-admins",
    ),
    "Google": Recorded(
        {"alg": "RS256", "kid": "c7e04465649ffa606557650c7e65f0a87ae00fe8", "typ": "JWT"},
        {
            "iss": "https://accounts.google.com", "azp": "1234567890-abc.apps.googleusercontent.com",
            "aud": "1234567890-abc.apps.googleusercontent.com", "sub": "110169484474386276334", "hd": "example.com",
            "email": "ada@example.com", "email_verified": True, "at_hash": "HK6E_P6Dh8Y93mRNtsDB1Q",
        },
        {
            "audience": "1234567890-abc.apps.googleusercontent.com", "claims": {"name": "email", "groups": "hd"},
            "groups": {"example.com": {}},
        },
        "110169484474386276334@accounts.google.com", "ada@example.com", "example.com",
    ),
    "Auth0, a claim in a namespace": Recorded(
        {"alg": "RS256", "typ": "at+jwt", "kid": "jq1"},
        {
            "https://callgate.example/groups": ["dev"], "iss": "https://acme.eu.auth0.com/", "sub": "google-oauth2|1101694",
            "aud": ["https://callgate.example", "https://acme.eu.auth0.com/userinfo"], "azp": "x", "scope": "openid",
            "gty": "password",
        },
        {
            "audience": "https://callgate.example", "claims": {"groups": "https://callgate.example/groups"},
            "groups": {"dev": {}},
        },
        "google-oauth2|1101694@acme.eu.auth0.com/", "google-oauth2|1101694", "dev",
    ),
    "Authentik": Recorded(
        {"alg": "RS256", "kid": "9c2e", "typ": "JWT"},
        {
            "iss": "https://authentik.example.com/application/o/callgate/", "sub": "5e6f", "aud": "Ab12Cd34",
            "acr": "goauthentik.io/providers/oauth2/default", "amr": ["pwd"], "email": "ada@example.com", "name": "Ada Lovelace",
            "preferred_username": "ada", "nickname": "ada", "groups": ["authentik Admins", "callgate admins"], "azp": "Ab12Cd34",
        },
        {"audience": "Ab12Cd34", "groups": {"callgate admins": {}, "*": {}}},
        "5e6f@authentik.example.com/application/o/callgate/", "Ada Lovelace", "callgate admins",
    ),
    "Dex": Recorded(
        {"alg": "RS256", "kid": "6e6f"},
        {
            "iss": "https://dex.example.com", "sub": "CgcyMzQyNzQ5EgZnaXRodWI", "aud": "callgate", "at_hash": "x",
            "email": "ada@example.com", "email_verified": True, "groups": ["acme:platform"], "name": "Ada Lovelace",
            "preferred_username": "ada",
        },
        {"audience": "callgate", "groups": {"acme:platform": {}, "acme:support": {}}},
        "CgcyMzQyNzQ5EgZnaXRodWI@dex.example.com", "Ada Lovelace", "acme:platform",
    ),
}  # fmt: skip


async def people_of(recorded: Recorded, settings: dict[str, Any]) -> tuple[TestIssuer, People]:
    demo = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
    auth = {"oidc": {"issuer": recorded.claims["iss"], **settings}}
    oidc = Config.model_validate({"model_list": [demo], "auth": auth}).auth.oidc
    assert oidc is not None
    documents = {
        "issuer": oidc.issuer,
        "jwks_uri": "https://keys.example",
        "keys": [jwk_of(RSA_KEY, recorded.header["kid"])],
    }

    async def fetch(_: str) -> bytes:
        return json.dumps(documents).encode()

    issuer = Issuer(oidc.issuer, None, fetch, lambda _: None)
    await issuer.look()
    rights = [group_rights(name, group) for name, group in oidc.groups.items()]
    return TestIssuer(), People(rules_of(oidc), rights, issuer, lambda _: None)


def token_of(signer: TestIssuer, recorded: Recorded, **claims: Any) -> str:
    now = int(time.time())
    return signer.signed(recorded.header, {**recorded.claims, "iat": now, "nbf": now, "exp": now + 300, **claims})


@pytest.mark.parametrize("of", ISSUERS)
async def test_a_token_of_a_known_issuer_says_who_somebody_is(of: str) -> None:
    recorded = ISSUERS[of]
    signer, people = await people_of(recorded, recorded.settings)
    caller = people.identify(token_of(signer, recorded))
    assert caller.name == recorded.name
    assert owner_name(caller) == f"person {recorded.name}"
    assert caller.person is not None
    assert (caller.person.shown, caller.person.group) == (recorded.shown, recorded.group)
    assert words_for(caller).endswith(
        f"({recorded.name})" if recorded.shown != caller.person.subject else recorded.name
    )


@pytest.mark.parametrize("of", ISSUERS)
async def test_who_is_in_no_group_there_has_no_rights_here(of: str) -> None:
    recorded = ISSUERS[of]
    signer, people = await people_of(recorded, {**recorded.settings, "groups": {"another": {}}})
    with pytest.raises(NoGroup):
        people.identify(token_of(signer, recorded))


@pytest.mark.parametrize("of", ISSUERS)
async def test_a_token_of_theirs_that_was_written_for_others_is_refused(of: str) -> None:
    recorded = ISSUERS[of]
    signer, people = await people_of(recorded, {**recorded.settings, "audience": "another"})
    with pytest.raises(TokenRefused, match="`aud` names others"):
        people.identify(token_of(signer, recorded))


async def test_a_tenant_of_entra_is_not_another() -> None:
    recorded = ISSUERS["Entra ID"]
    signer, people = await people_of(recorded, recorded.settings)
    others = "https://login.microsoftonline.com/99999999-2222-3333-4444-555555555555/v2.0"
    with pytest.raises(TokenRefused, match="another issuer"):
        people.identify(token_of(signer, recorded, iss=others))


async def test_groups_that_are_too_many_are_said_to_be() -> None:
    recorded = ISSUERS["Entra ID"]
    signer, people = await people_of(recorded, {**recorded.settings, "claims": {"groups": "groups"}})
    with pytest.raises(NoGroup, match="too many to stand in a token"):
        people.identify(token_of(signer, recorded, _claim_names={"groups": "src1"}))


async def test_the_same_name_at_another_issuer_is_another_person() -> None:
    callers: list[Caller] = []
    for place in ("https://a.example", "https://a.example/", "http://localhost", "https://localhost"):
        recorded = Recorded({"alg": "RS256", "kid": "k"}, {"iss": place, "aud": "us", "sub": "ada"}, {}, "", "", "")
        signer, people = await people_of(recorded, {"audience": "us", "groups": {"*": {}}})
        callers.append(people.identify(token_of(signer, recorded)))
    assert len({owner_name(caller) for caller in callers}) == len({caller.name for caller in callers}) == 4
