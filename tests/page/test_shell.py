"""The shell: what it loads, the key, and what is shown to whom."""

import pytest

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.needs import needs
from tests.harness.server import serve
from tests.page.tabs import Tabs
from tests.scripted_upstream import Upstream

pytestmark = [pytest.mark.anyio, needs("environment:page", "chromium-headless-shell")]


async def test_it_opens_without_a_word_in_the_console_or_a_request_elsewhere(upstream: Upstream, tabs: Tabs) -> None:
    async with serve(create_app(make_config(upstream.url))) as url:
        page = await tabs.open(url)
        await page.get_by_text("● live").wait_for()

        assert await page.title() == "Playground · Callgate"
        assert all(each.startswith((url, "data:")) for each in tabs.requests)
        await tabs.close()
