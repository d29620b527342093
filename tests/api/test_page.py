"""The page: every file of it is served under a policy that loads nothing from elsewhere."""

import re
from pathlib import Path

import pytest

import callgate
from callgate.access.keys import mint_key
from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Upstream

pytestmark = pytest.mark.anyio

WEB = Path(callgate.__file__).parent / "web"
MOST_BYTES = 260_000


async def test_the_shell_needs_no_key_and_everything_behind_it_does(upstream: Upstream) -> None:
    keys = [{"name": "alice", "hash": mint_key()[1]}]
    async with serve(create_app(make_config(upstream.url, auth="keys", keys=keys))) as url, http_client(url) as client:
        page = await client.get("/")
        script = await client.get("/web/app.js")
        behind = [(await client.get(path)).status_code for path in ("/v1/runs", "/v1/feed", "/v1/usage", "/v1/tools")]
        other = await client.get("/web/../api/page.py")

    assert (page.status_code, script.status_code, other.status_code) == (200, 200, 401)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for answer in (page, script):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert behind == [401] * 4


async def test_every_file_that_a_file_imports_is_served(upstream: Upstream) -> None:
    async with serve(create_app(make_config(upstream.url))) as url, http_client(url) as client:
        for file in WEB.rglob("*.js"):
            served = await client.get(f"/web/{file.relative_to(WEB)}")
            assert served.content == file.read_bytes()
            for wanted in re.findall(r"""from\s+["'](\.[^"']+)["']""", file.read_text()):
                assert (file.parent / wanted).resolve().is_file(), f"{file.name} imports {wanted}"


async def test_the_page_can_be_taken_away(upstream: Upstream) -> None:
    config = make_config(upstream.url, server={"page": False})
    async with serve(create_app(config)) as url, http_client(url) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/web/app.js")).status_code == 404


def test_all_of_it_is_small() -> None:
    assert sum(file.stat().st_size for file in WEB.rglob("*") if file.suffix in {".js", ".css", ".html"}) <= MOST_BYTES
