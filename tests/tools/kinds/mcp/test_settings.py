"""What an entry of a server may say of who its callers are there."""

from typing import Any

import pytest
from pydantic import ValidationError

from callgate.tools.kinds.mcp.settings import McpServer


def entry(**more: Any) -> McpServer:
    return McpServer.model_validate({"url": "https://mcp.example/mcp", "oauth": {"per": "user"}, **more})


def test_headers_are_sent_on_that_say_who_asks() -> None:
    assert entry(forward_headers={"X-User": "X-Forwarded-User"}).forward_headers == {"X-User": "X-Forwarded-User"}


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "authorization",
        "Cookie",
        "Host",
        "X-Api-Key",
        "Api-Key",
        "Connection",
        "Keep-Alive",
        "Transfer-Encoding",
        "Upgrade",
        "TE",
        "Trailer",
        "Proxy-Authorization",
        "Content-Length",
        "Mcp-Session-Id",
        "Mcp-Anything",
        "X User",
        "X-User:",
        "X-User\r\nX-Evil",
        "",
    ],
)
def test_what_is_a_credential_or_of_a_connection_is_sent_on_under_no_name_and_from_none(name: str) -> None:
    for headers in ({name: "X-User"}, {"X-User": name}):
        with pytest.raises(ValidationError):
            entry(forward_headers=headers)


@pytest.mark.parametrize("oauth", [None, {}, {"per": "server"}])
def test_nothing_is_sent_on_to_a_server_where_all_are_the_operator(oauth: Any) -> None:
    with pytest.raises(ValidationError, match="they go with"):
        entry(oauth=oauth, forward_headers={"X-User": "X-Forwarded-User"})


def test_a_header_is_fixed_or_sent_on() -> None:
    with pytest.raises(ValidationError, match="in `headers` already"):
        entry(headers={"x-user": "all"}, forward_headers={"X-User": "X-Forwarded-User"})


def test_results_of_identities_are_not_said_to_be_shared() -> None:
    with pytest.raises(ValidationError, match="of each identity"):
        entry(safety="read_only", cache_seconds=60, cache_shared=True)
    assert entry(oauth={}, safety="read_only", cache_seconds=60, cache_shared=True).cache_shared
