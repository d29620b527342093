"""The site builds without a dead link, and a browser that reads it asks nobody else for anything."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.environment import ROOT, Environment
from tests.harness.needs import needs

pytestmark = needs("environment:site")

FETCHED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'> ]+)""")
IMPORTED = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"') ]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [Environment("site").interpreter, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_dead_link(site: Path):
    assert (site / "index.html").is_file()
    assert len(list(site.rglob("*.html"))) > len(list((ROOT / "docs").rglob("*.md")))


def test_nothing_is_fetched_from_another_host(site: Path):
    pages = "\n".join(page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    pages = re.sub(r'<link[^>]+rel="?canonical[^>]*>', "", pages)
    assert FETCHED.findall(pages) == []
    assert [found for sheet in site.rglob("*.css") for found in IMPORTED.findall(sheet.read_text("utf-8"))] == []


def test_every_setting_of_the_config_is_in_the_reference(site: Path):
    page = (site / "configuration.html").read_text(encoding="utf-8")
    for setting in ("model_list", "litellm_params", "drain_seconds", "require_approval", "redis_url", "budget_per_day"):
        assert f"<code>{setting}</code>" in page
