"""How Callgate logs in to an MCP server."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.guards import ADMITS, SAME, WIDENS_ON, WidensTo
from callgate.config.schema.values import Section, Switch, WebAddress, shape

SCOPE = shape(r"^[\x21\x23-\x5b\x5d-\x7e]{1,256}$", "should be the name of one scope")
SHARED = WidensTo(("user", "key", "server"))


class OAuthSection(Section):
    """How Callgate logs in to the server. `oauth: {}` is enough for most."""

    grant: Literal["code", "client_credentials", "none"] = "code"
    """Who logs in: a person in a browser (`code`), Callgate itself (`client_credentials`), or nobody (`none`)."""
    per: Annotated[Literal["server", "key", "user"], SHARED] = "server"
    """Whose login it is: one of the operator's for everybody who may use the tools, one for each key, or for each `user` of a key."""
    issuer: Annotated[WebAddress | None, SAME] = None
    """The only authorization server that is logged in at. Without it the tool server says which."""
    client_id: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """What Callgate is called there, where it was registered by hand; it otherwise makes itself known."""
    client_secret: SecretStr | None = None
    """The client's secret, which goes to `issuer` alone."""
    private_key: SecretStr | None = None
    """A private key in PEM (RSA, or P-256) with which the client proves itself in place of a secret: `file:/path`."""
    scopes: Annotated[tuple[Annotated[str, SCOPE], ...] | None, ADMITS] = None
    """The scopes that are asked for, and no others by themselves; without them, those that the server names."""
    redirect: Literal["loopback", "public"] | None = None
    """Where the browser is sent after a login: to a port of this machine, or to `server.public_url`. Not set: there from the page, and to
    a port from the command line."""
    client_name: Annotated[str, Field(min_length=1, max_length=100)] = "Callgate"
    """The name that the authorization server shows to whoever logs in."""
    legacy: Annotated[Switch, WIDENS_ON] = False
    """Log in at the server's own host where it says nothing of an authorization server, as servers of 2025-03-26 do."""

    @model_validator(mode="after")
    def _says_which_client(self) -> Self:
        own_client = {"client_id": self.client_id, "client_secret": self.client_secret, "private_key": self.private_key}
        if self.grant == "none":
            if any(own_client.values()) or self.issuer or self.scopes or self.legacy:
                raise PydanticCustomError("oauth", "`grant: none` logs in nowhere: it goes with `per` alone")
            return self
        if self.client_id is None and (self.client_secret or self.private_key):
            raise PydanticCustomError("oauth", "`client_secret` and `private_key` need the `client_id` they belong to")
        if self.client_secret is not None and self.private_key is not None:
            raise PydanticCustomError("oauth", "needs either `client_secret` or `private_key`")
        if self.client_id is not None and self.issuer is None and not is_document_address(self.client_id):
            raise PydanticCustomError(
                "oauth", "`client_id` needs the `issuer` it was registered with, and is sent to no other"
            )
        if self.grant == "client_credentials":
            if not (self.client_secret or self.private_key):
                raise PydanticCustomError(
                    "oauth", "`client_credentials` need `client_id`, `issuer`, and `client_secret` or `private_key`"
                )
            if self.per != "server":
                raise PydanticCustomError(
                    "oauth", "`client_credentials` are the same for all: they go with `per: server`"
                )
        return self


def is_document_address(client_id: str) -> bool:
    """Return whether the id of a client is the address of a document about it."""
    parts = urlsplit(client_id)
    return parts.scheme == "https" and bool(parts.netloc) and parts.path not in ("", "/")
