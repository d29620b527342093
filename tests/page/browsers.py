"""Chromium, driven from an environment of its own that is made for the interpreter that runs the tests."""

import contextlib
import shutil
import sys
from collections.abc import AsyncIterator
from typing import Any

from tests.harness.environment import Environment


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
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
