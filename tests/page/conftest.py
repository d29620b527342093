"""A browser for all tests of the page, and tabs of it that forgive nothing."""

import shutil
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.harness.environment import Environment
from tests.page.tabs import Tabs


@pytest.fixture(scope="session")
async def browser(anyio_backend: str) -> AsyncIterator[Any]:
    """One for the whole run. Its driver is in an environment of its own, made for the interpreter that runs the tests."""
    [packages] = (Environment("page").folder / "lib").glob("python*/site-packages")
    sys.path.append(str(packages))  # last: what is ours goes first
    try:
        from playwright.async_api import async_playwright  # type: ignore[import-not-found]  # see `environments/`
    finally:
        sys.path.remove(str(packages))
    async with async_playwright() as driver:
        program = shutil.which("chromium-headless-shell")
        launched = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        await launched.close()


@pytest.fixture
async def tabs(browser: Any) -> AsyncIterator[Tabs]:
    """Opens pages; what their consoles said, and whom they asked, is looked at when the test has ended."""
    opened = Tabs(browser)
    yield opened
    await opened.close()
    assert opened.complaints == []


@pytest.fixture
def axe() -> str:
    """The source of axe-core."""
    [source] = Environment("page").folder.glob("lib/python*/site-packages/axe_playwright_python/*.js")
    return source.read_text(encoding="utf-8")
