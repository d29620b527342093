"""A served Callgate for a test of the page, and the page's Playground as its user works it."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.configs import config_dict
from tests.harness.server import serve
from tests.page.tabs import Tabs
from tests.scripted_upstream import Upstream

IMG = "<img src=x onerror=document.title='owned'>"
"""What a hostile model, tool, server or name would have the page do."""
PRICE = {"input_cost_per_token": 2e-6, "output_cost_per_token": 8e-6}
"""Or litellm's list would be loaded for it."""
TOOLS = ("get_weather", "add", "send_mail", "echo")


@contextlib.asynccontextmanager
async def served_page(
    upstream: Upstream, tabs: Tabs, fallbacks: Mapping[str, list[str]] = MappingProxyType({}), /, **options: Any
) -> AsyncIterator[str]:
    """Tabs are closed before the server, which would wait for their feeds. `fallbacks` are by model."""
    config = config_dict(upstream.url, **{"tools": TOOLS, "entry": {"model_info": PRICE}, **options})
    for entry in config["model_list"]:
        entry["fallbacks"] = fallbacks.get(entry["model_name"], [])
    async with serve(create_app(Config.model_validate(config))) as url:
        try:
            yield url
        finally:
            await tabs.close()


def keyring(**rights: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Keys by their names, and the sections of a config that knows them."""
    keys, entries = {}, []
    for name, more in rights.items():
        keys[name], hash = mint_key()
        entries.append({"name": name, "hash": hash, **more})
    return keys, {"auth": "keys", "keys": entries}


async def say(page: Any, text: str = "hello") -> None:
    """Asks in the Playground; returns when the question is on its way."""
    answers = page.locator(".messages .assistant")
    before = await answers.count()
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")
    await answers.nth(before).wait_for(state="attached")


async def answered(page: Any) -> None:
    """Waits until the Playground takes a question again."""
    await page.get_by_role("button", name="Send").wait_for()


async def ask(page: Any, text: str = "hello") -> None:
    await say(page, text)
    await answered(page)
