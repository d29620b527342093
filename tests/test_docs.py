"""What the README shows works as it is pasted: its curl line, its SDK snippet, its configuration."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from callgate.application import create_app
from callgate.config.load import load
from callgate.config.schema import Config
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


@pytest.mark.anyio
async def test_the_sdk_snippet_answers() -> None:
    [snippet] = blocks("python")
    async with serve(create_app(load(ROOT / "config.yaml").config)) as url:
        said = await output_of(sys.executable, "-c", snippet.replace(ADDRESS, url))
    assert "42" in said
    assert "Tokyo" in said


def test_what_comes_back_has_the_shape_that_is_shown() -> None:
    [shown] = blocks("json")
    answer = json.loads(shown)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["x_callgate"]["ending"] == "answered"


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_configuration_shown_is_one(block: str) -> None:
    assert Config.model_validate(yaml.safe_load(block)).model_list


def test_every_page_that_is_linked_exists() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    """A page nobody finds is not documentation. Decisions are found by their own index."""
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in README, f"README.md does not mention docs/{page.name}"
