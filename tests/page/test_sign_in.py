"""Signing in on the page, at a real issuer."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.harness.issuer import AUDIENCE
from tests.harness.needs import needs
from tests.harness.oidc_provider import oidc_provider
from tests.page.served import served_page
from tests.page.tabs import Tabs
from tests.scripted_upstream import Upstream

pytestmark = [
    pytest.mark.anyio,
    needs("environment:page", "chromium-headless-shell", "environment:oidc-provider", "environment:mcp-node"),
]
FONTS = "https://fonts.googleapis.com/**"
"""What the issuer's own page asks for."""
GROUPS = {"operators": {"admin": True, "approve": True}, "staff": {"see": "own"}}


@contextlib.asynccontextmanager
async def served_to_staff(upstream: Upstream, tabs: Tabs, seconds: int = 300) -> AsyncIterator[tuple[str, str]]:
    async with oidc_provider(seconds) as issuer:
        oidc = {"issuer": issuer, "audience": AUDIENCE, "client_id": "callgate-page", "groups": GROUPS}
        async with served_page(upstream, tabs, auth={"oidc": oidc}) as url:
            yield url, issuer
        of_issuer = tuple(f"asked another origin: {place}" for place in (f"{issuer}/", FONTS.rstrip("*")))
        tabs.complaints = [each for each in tabs.complaints if not each.startswith(of_issuer)]


async def sign_in(page: Any, name: str, *, keep: bool = False) -> None:
    """From the dialog of the page to the issuer, and back."""
    await page.route(FONTS, lambda route: route.fulfill(body="", content_type="text/css"))
    if keep:
        await page.get_by_label("keep it until this tab is closed").check()
    await page.get_by_role("button", name="Sign in with").click()
    await page.locator("[name=login]").fill(name)
    await page.locator("[name=password]").fill("any")
    await page.get_by_role("button", name="Sign-in").click()
    await page.get_by_role("button", name="Continue").click()


async def test_somebody_signs_in_and_out_and_leaves_nothing(upstream: Upstream, tabs: Tabs) -> None:
    async with served_to_staff(upstream, tabs) as (url, issuer):
        page = await tabs.open(url)
        asked: list[Any] = []
        page.on("request", lambda request: asked.append(request) if request.url.startswith(issuer) else None)
        await sign_in(page, "ada.lovelace")
        await page.get_by_role("button", name="Ada Lovelace").wait_for()
        assert page.url == f"{url}/#/overview"
        await page.get_by_text("live", exact=True).wait_for()
        there = parse_qs(urlsplit(next(each.url for each in asked if "/auth?" in each.url)).query)
        assert there["code_challenge_method"] == ["S256"]
        assert {"state", "nonce", "code_challenge"} <= there.keys()
        [exchange] = [each for each in asked if each.url.endswith("/token")]
        sent = parse_qs(exchange.post_data)
        assert sent.keys() == {"grant_type", "code", "redirect_uri", "code_verifier", "client_id"}
        assert await page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]
        await page.reload()
        await page.get_by_role("button", name="Sign in with").wait_for()


async def test_a_token_that_is_kept_outlives_a_reload_and_goes_with_signing_out(upstream: Upstream, tabs: Tabs) -> None:
    async with served_to_staff(upstream, tabs) as (url, _):
        page = await tabs.open(url)
        await sign_in(page, "bob", keep=True)
        who = page.get_by_role("button", name="Bob")
        await who.wait_for()
        await page.reload()
        await who.click()
        await page.get_by_text("Bob (bob@").first.wait_for()
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("button", name="Yes, sign me out").click()
        await page.get_by_role("button", name="Sign in with").wait_for()
        assert await page.evaluate("sessionStorage.length") == 0


async def test_an_answer_that_nobody_asked_for_signs_nobody_in(upstream: Upstream, tabs: Tabs) -> None:
    async with served_to_staff(upstream, tabs) as (url, issuer):
        page = await tabs.open(f"{url}/?code=stolen&state=made-up")
        await page.get_by_text("Nobody signed in: this page did not ask for it.").wait_for()
        assert page.url == f"{url}/#/overview"
        await page.evaluate(
            "sessionStorage.setItem('callgate-sign-in', JSON.stringify({state: 's', nonce: 'n', verifier: 'v', keep: false, page: ''}))"
        )
        await page.goto(f"{url}/?error=access_denied&error_description=%3Cb%3Eno%3C/b%3E&state=s")
        await page.get_by_text("Nobody signed in: <b>no</b>").wait_for()
        assert not [each for each in tabs.requests if each.startswith(f"{issuer}/token")]


async def test_without_a_client_the_page_asks_for_a_key_and_nobody_elses_origin(upstream: Upstream, tabs: Tabs) -> None:
    async with oidc_provider() as issuer:
        oidc = {"issuer": issuer, "audience": AUDIENCE, "groups": GROUPS}
        async with served_page(upstream, tabs, auth={"oidc": oidc}) as url:
            page = await tabs.open(url)
            await page.get_by_role("heading", name="API key").wait_for()
            assert await page.get_by_role("button", name="Sign in with").count() == 0
            answer = await page.goto(url)
            assert "connect-src 'self';" in answer.headers["content-security-policy"]


async def test_a_token_is_renewed_before_it_ends(upstream: Upstream, tabs: Tabs) -> None:
    async with served_to_staff(upstream, tabs, seconds=7) as (url, issuer):
        page = await tabs.open(url)
        await sign_in(page, "bob", keep=True)
        await page.get_by_role("button", name="Bob").wait_for()
        first = await page.evaluate("sessionStorage.getItem('callgate-key')")
        async with page.expect_response(f"{issuer}/token") as renewal:
            pass
        assert parse_qs((await renewal.value).request.post_data)["grant_type"] == ["refresh_token"]
        await page.wait_for_function("first => sessionStorage.getItem('callgate-key') !== first", arg=first)
        await page.get_by_role("button", name="Bob").wait_for()
