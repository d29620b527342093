"""The site builds without a dead link, and a browser that reads it asks nobody else for anything."""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import callgate
from tests.docs.searched import WANTED
from tests.harness.environment import ROOT, Environment
from tests.harness.needs import needs

pytestmark = needs("environment:site")

FETCHED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'> ]+)""")
IMPORTED = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"') ]+)""")


EDITED_AT = "https://forge.example.com/team/callgate/edit/main"


def built(project: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [Environment("site").interpreter, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=project,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "CALLGATE_DOCS_EDIT": EDITED_AT},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Article(HTMLParser):
    """What the text of a page leads to, and the places in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.places: set[str] = set()
        self._is_inside = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        self.places.add(fields.get("id") or "")
        if tag == "article":
            self._is_inside = True
        elif self._is_inside and tag == "a" and fields.get("class") != "headerlink":
            self.links.append(fields.get("href") or "")
        elif self._is_inside and tag == "img":
            self.pictures.append(fields.get("src") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._is_inside = False


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


def test_every_row_of_the_reference_says_what_it_means(site: Path):
    page = (site / "configuration.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr>\s*(<td>.*?)</tr>", page, re.DOTALL)
    assert len(rows) > 250
    assert [row for row in rows if not re.sub(r"<[^>]+>|\s", "", row.rpartition("<td>")[2])] == []


def test_each_page_has_a_logo_the_version_and_a_link_to_edit_it(site: Path):
    for name, source in {"streaming.html": "docs/streaming.md", "changelog.html": "CHANGELOG.md"}.items():
        page = (site / name).read_text(encoding="utf-8")
        assert 'src="assets/logo.svg"' in page
        assert 'href="assets/favicon.svg"' in page
        assert f"Callgate {callgate.__version__}" in page
        assert f'href="{EDITED_AT}/{source}"' in page


@needs("node")
def test_what_people_search_is_among_the_first_three_pages(site: Path):
    done = subprocess.run(
        ["node", ROOT / "tests/docs/search.mjs", site],
        input=json.dumps(list(WANTED)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert len(WANTED) >= 50
    assert {words: found[words][:4] for words, page in WANTED.items() if f"{page}.html" not in found[words][:3]} == {}
    for pages in found.values():
        assert not [page for page in pages if page.startswith(("decisions/", "changelog", "contributing"))]


def test_every_link_and_picture_of_every_page_leads_somewhere(site: Path):
    articles = {page: Article(page) for page in site.rglob("*.html")}
    dead: list[str] = []
    for page, article in articles.items():
        for target in (*article.links, *article.pictures):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            place = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not place.is_file() or (parts.fragment and unquote(parts.fragment) not in articles[place].places):
                dead.append(f"{page.relative_to(site)}: {target!r}")
    assert dead == []


def test_what_a_page_links_to_is_linked_on_the_site(site: Path):
    for source, page in {"docs/index.md": "index.html", "docs/tools.md": "tools.html"}.items():
        text = re.sub(r"```.*?```", "", (ROOT / source).read_text("utf-8"), flags=re.DOTALL)
        article = Article(site / page)
        assert len(article.pictures) == len(re.findall(r"!\[[^\]]*\]\(", text))
        assert len(article.links) >= len(re.findall(r"(?<!!)\[[^\]]*\]\(", text)) > 0


@pytest.mark.parametrize("target", ["nothing.md", "../pyproject.toml", "assets/nothing.png"])
def test_what_cannot_be_resolved_is_an_error(tmp_path: Path, target: str):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for file in (
        *ROOT.glob("*.md"),
        *ROOT.glob("*.yaml"),
        *ROOT.glob("*.yml"),
        *ROOT.glob("*.json"),
        *ROOT.glob("*.toml"),
    ):
        shutil.copy(file, tmp_path)
    (tmp_path / "app" / "callgate").mkdir(parents=True)
    shutil.copy(ROOT / "app" / "callgate" / "__init__.py", tmp_path / "app" / "callgate")
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write(f"\n[See there]({target})\n")
    done = built(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert target in done.stdout + done.stderr
