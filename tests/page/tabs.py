"""Tabs of a browser. Whatever one complains of, or asks another origin for, fails its test."""

import re
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 30_000
"""Milliseconds to wait for something to appear: the machine may be busy."""
REFUSED = re.compile(r"Failed to load resource: the server responded with a status of (4|5)\d\d")
"""Chromium writes one such line for every answer that is an error, whether or not the page deals with it."""


class Tabs:
    """Opens pages in contexts of their own, and collects what is wrong with them."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.complaints: list[str] = []
        """What the test may take out again, if it expected it."""
        self.requests: list[str] = []
        """The URLs that were asked for."""

    async def open(self, url: str, *, key: str = "", dark: bool = False, width: int = 1280, **options: Any) -> Any:
        """A page in a browser without a memory; `key` is what its operator would type."""
        context = await self._browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", **options
        )
        context.set_default_timeout(PATIENCE)
        self._contexts.append(context)
        page = await context.new_page()
        self._watch(page, "{0.scheme}://{0.netloc}".format(urlsplit(url)))
        address, _, fragment = url.partition("#")
        if key:
            await page.goto(f"{address}#key={key}")
            await page.get_by_role("button", name="Use it").click()
            await page.get_by_role("dialog").wait_for(state="detached")
            if fragment:
                await page.goto(f"{address}#{fragment}")
        else:
            await page.goto(url)
        return page

    def _watch(self, page: Any, origin: str) -> None:
        def on_console(message: Any) -> None:
            if not REFUSED.match(message.text):
                self.complaints.append(f"console: {message.type}: {message.text}")

        def ask(request: Any) -> None:
            self.requests.append(request.url)
            if not request.url.startswith((origin + "/", "data:", "blob:")):
                self.complaints.append(f"asked another origin: {request.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", ask)

    async def close(self) -> None:
        while self._contexts:
            await self._contexts.pop().close()
