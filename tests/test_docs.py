"""What the README shows works as it is pasted: its curl line, its SDK snippet, its configuration. `docs/log-events.md` lists
what the code logs."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from callgate.application import create_app
from callgate.config.load import load
from tests.harness.log_lines import logged
from tests.harness.server import serve

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


async def output_of(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


@pytest.mark.anyio
@pytest.mark.needs("curl")
async def test_the_curl_line_answers() -> None:
    [line] = [block for block in blocks("sh") if "chat/completions" in block]
    async with serve(create_app(load(ROOT / "config.yaml").config)) as url:
        answer = json.loads(await output_of("bash", "-c", line.replace(ADDRESS, url)))
    assert "42" in answer["choices"][0]["message"]["content"]
    assert answer["x_callgate"]["turns"][0]["calls"][0]["name"] == "calculator"


def test_every_page_that_is_linked_exists() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"


# Log events -----------------------------------------------------------------------------------------------------------

LOG_PAGE = ROOT / "docs" / "log-events.md"
EVENT_ROW = re.compile(
    r"^\| `(?P<event>[^`]+)` \| (?P<levels>[a-z, ]+) \| (?P<logger>[^|]+) \| (?P<fields>[^|]*) \| [^|]+\|$",
    re.MULTILINE,
)


def listed_events() -> dict[str, tuple[set[str], set[str]]]:
    """The page's events, with their levels and fields."""
    rows = list(EVENT_ROW.finditer(LOG_PAGE.read_text("utf-8")))
    assert len({row["event"] for row in rows}) == len(rows)
    return {row["event"]: (set(row["levels"].split(", ")), set(re.findall(r"`(\w+)`", row["fields"]))) for row in rows}


def test_the_figure_of_the_home_page_fits_into_its_column() -> None:
    figure = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split("```")[1]
    assert max(len(line) for line in figure.splitlines()) <= 76, "what is wider is cut off on the site"


def test_every_log_event_is_a_name_and_not_a_sentence():
    lines = list(logged())
    assert len(lines) > 30
    assert [line for line in lines if line.event is None or not re.fullmatch(r"[a-z]+(_[a-z]+)*", line.event)] == []


def test_the_page_lists_every_event_with_its_level_and_its_fields():
    page = listed_events()
    wrong = []
    for line in logged():
        levels, fields = page.get(line.event or "", (set(), set()))
        if not (line.levels <= levels and line.fields <= fields):
            wrong.append(line)
    assert wrong == []


def test_the_page_lists_nothing_that_is_not_logged():
    assert set(listed_events()) - {line.event for line in logged()} == set()
