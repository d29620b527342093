"""A browser for all tests of the page, and tabs of it that forgive nothing."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.harness.environment import Environment
from tests.page.browsers import chromium
from tests.page.tabs import Tabs


@pytest.fixture(scope="package")
async def browser(anyio_backend: str) -> AsyncIterator[Any]:
    """One for the whole folder."""
    async with chromium() as launched:
        yield launched


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
