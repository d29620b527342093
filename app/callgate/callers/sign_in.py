"""What a page needs to sign somebody in as a public client."""

import msgspec


class SignIn(msgspec.Struct, frozen=True):
    """Where to sign in, and as which client. There is no secret in it."""

    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    authorization: str
    """The address that the browser is sent to."""
    token: str
    """The address that gives the token for a code."""
    end_session: str | None
    """The address that ends the session there, if it has one."""
