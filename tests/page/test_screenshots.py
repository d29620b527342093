"""The pictures in the documentation are those of the page as it is made."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.scale import LONG
from tests.harness.environment import ROOT
from tests.harness.needs import needs
from tests.page.screenshots import ASSETS, take

MOST_BYTES = 200_000


@pytest.mark.skipif(not LONG, reason="ten seconds: `make chaos`, and `make screenshots` itself")
@pytest.mark.anyio
@needs("environment:page", "chromium-headless-shell")
async def test_they_can_all_be_taken_again(browser: Any, tmp_path: Path) -> None:
    made = {file.name for file in await take(browser, tmp_path)}
    assert made == {file.name for file in ASSETS.glob("page-*.png")}


def test_each_is_small_and_shown_somewhere() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    shown = set(re.findall(r"assets/(page-[a-z-]+\.png)", pages))
    assert shown == {file.name for file in ASSETS.glob("page-*.png")}
    assert max(file.stat().st_size for file in ASSETS.glob("page-*.png")) < MOST_BYTES
