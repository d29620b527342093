"""Says of `/mcp` which issuer's tokens it takes (RFC 9728), so that an MCP client finds out by itself where its user signs in."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from callgate.api.mcp_errors import MCP_PATH
from callgate.config.schema.whole import Config

METADATA: Final = "/.well-known/oauth-protected-resource"
METADATA_PATHS: Final = frozenset({METADATA, METADATA + MCP_PATH})
"""The document is at both: clients look for it under the path of the resource, and without one."""
_HOST: Final = re.compile(r"[A-Za-z0-9.\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


def has_metadata(config: Config, path: str) -> bool:
    """Return whether the document is at a path: where tokens of an issuer are taken. It needs no key."""
    return path in METADATA_PATHS and config.auth.oidc is not None and config.mcp.serve != "off"


def metadata_of(config: Config, headers: Mapping[str, str], scheme: str) -> dict[str, Any]:
    """Return the document."""
    assert config.auth.oidc is not None, "there is one where tokens are taken"
    return {
        "resource": _base(config, headers, scheme) + MCP_PATH,
        "authorization_servers": [config.auth.oidc.issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "Callgate",
    }


def challenge_with_metadata(challenge: str, config: Config, path: str, headers: Mapping[str, str], scheme: str) -> str:
    """Return what a 401 asks for, with the address of the document where the path has one."""
    if config.auth.oidc is None or path != MCP_PATH or config.mcp.serve == "off":
        return challenge
    address = f'resource_metadata="{_base(config, headers, scheme)}{METADATA}{MCP_PATH}"'
    if "=" in challenge:
        return f"{challenge}, {address}"
    return f"{challenge} {address}"


def _base(config: Config, headers: Mapping[str, str], scheme: str) -> str:
    """Return the address under which a client reaches this server."""
    if config.server.public_url is not None:
        return config.server.public_url.rstrip("/")
    host = headers.get("host", "")
    if not _is_host(host):
        host = f"{config.server.host}:{config.server.port}"
    return f"{scheme}://{host}"


def _is_host(host: str) -> bool:
    if _HOST.fullmatch(host) is None:
        return False
    try:
        return bool(urlsplit(f"//{host}").hostname)
    except ValueError:  # what stands in brackets is no address
        return False
