"""Asks token endpoints: for a code, a refresh token, the client's own credentials; and has tokens revoked."""

from collections.abc import Mapping
from typing import Final

import msgspec

from callgate.tools.kinds.mcp.oauth.documents import TokenAnswer, refusal, token_answer
from callgate.tools.kinds.mcp.oauth.errand import Errand, OutOfReach
from callgate.tools.kinds.mcp.oauth.own_client import OwnClient, proof
from callgate.tools.kinds.mcp.oauth.settings import OAuthSection

REFUSALS: Final = frozenset({400, 401, 403})
"""The statuses with which token endpoints refuse."""


class GrantRefused(Exception):
    """Raised where a token endpoint refuses, with a code that may be shown."""

    def __init__(self, code: str) -> None:
        super().__init__(f"it was refused ({code})")
        self.code = code

    def is_final(self, client: OwnClient) -> bool:
        """Return whether the same will be refused for ever. A configured client may have been given a wrong secret."""
        if client.is_configured:
            return self.code == "invalid_grant"
        return self.code in ("invalid_grant", "invalid_client", "unauthorized_client")


CODES: Final = frozenset(
    "access_denied invalid_client invalid_grant invalid_request invalid_scope invalid_target unauthorized_client"
    " unsupported_grant_type unsupported_response_type server_error temporarily_unavailable".split()
)
"""The codes of refusals that may be shown. Any other is a word of the server's own."""


class TokenEndpoint(msgspec.Struct, frozen=True):
    """The token endpoint of one authorization server, for one client."""

    address: str
    client: OwnClient
    section: OAuthSection
    resource: str

    async def for_code(self, errand: Errand, code: str, verifier: str, redirect_uri: str) -> TokenAnswer:
        """Raises `GrantRefused`, `OutOfReach`, `UnusableDocument`, `CannotLogIn`; so do the others."""
        fields = {"code": code, "code_verifier": verifier, "redirect_uri": redirect_uri}
        return await self._ask(errand, "authorization_code", fields)

    async def for_refresh(self, errand: Errand, refresh: str) -> TokenAnswer:
        return await self._ask(errand, "refresh_token", {"refresh_token": refresh})

    async def for_client(self, errand: Errand, scopes: tuple[str, ...]) -> TokenAnswer:
        fields: Mapping[str, str] = {}
        if scopes:
            fields = {"scope": " ".join(scopes)}
        return await self._ask(errand, "client_credentials", fields)

    async def _ask(self, errand: Errand, grant: str, fields: Mapping[str, str]) -> TokenAnswer:
        proven, headers = proof(self.client, self.section)
        whole = {"grant_type": grant, **fields, "resource": self.resource, **proven}
        answer = await errand.post_form(self.address, whole, headers)
        if answer.status in REFUSALS and (code := refusal(answer.body)) in CODES:
            raise GrantRefused(code)
        if not answer.is_good:
            raise OutOfReach(f"the token endpoint answered with HTTP {answer.status}")
        return token_answer(answer.body)


async def revoke(errand: Errand, address: str, client: OwnClient, section: OAuthSection, token: str, kind: str) -> bool:
    """Have a token revoked (RFC 7009); return whether that was accepted. Raises `OutOfReach` and `CannotLogIn`."""
    proven, headers = proof(client, section)
    answer = await errand.post_form(address, {"token": token, "token_type_hint": kind, **proven}, headers)
    return answer.is_good
