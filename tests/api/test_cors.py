"""Which pages may call, and what a browser is sent about it."""

import pytest

from callgate.api.cors import cors_headers, preflight_headers

PAGE = "https://chat.example.com"


@pytest.mark.parametrize(
    ("origin", "origins", "allowed"),
    [
        (PAGE, [PAGE], PAGE),
        ("HTTPS://Chat.Example.com", [PAGE], "HTTPS://Chat.Example.com"),
        (PAGE, [PAGE + "/"], PAGE),
        (PAGE, ["*"], "*"),
        (PAGE, [], None),
        (PAGE + ".evil.com", [PAGE], None),
        (PAGE + ":8443", [PAGE], None),
        ("http://chat.example.com", [PAGE], None),
        ("null", [PAGE], None),
    ],
)
def test_a_page_may_call_when_its_very_origin_is_listed(origin: str, origins: list[str], allowed: str | None) -> None:
    headers = {"origin": origin, "access-control-request-method": "POST"}
    assert cors_headers(headers, origins).get("access-control-allow-origin") == allowed
    assert (preflight_headers(headers, origins) is not None) == (allowed is not None)


def test_the_headers_a_page_asks_for_are_allowed() -> None:
    asked = {"origin": PAGE, "access-control-request-headers": "authorization, x-stainless-os"}
    preflight = preflight_headers(asked, [PAGE]) or {}
    assert preflight["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert "POST" in preflight["access-control-allow-methods"]
