"""What the pages show works: configurations load, commands exist, snippets run, tables name what there is."""

import ast
import asyncio
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from callgate.application import create_app
from callgate.commands import app as command
from callgate.config.load import load
from callgate.config.schema.whole import Config
from callgate.models.building import model_entries
from callgate.models.inspection import whereabouts
from tests.harness.environment import CREWAI, NODE, ROOT, Environment
from tests.harness.needs import BY_MAKE_CLIENTS, needs
from tests.harness.server import serve
from tests.harness.sources import trees_with

DOCS = ROOT / "docs"
LARGE = (CREWAI, "llama-index")
MANY = frozenset({NODE})
"""Environments of several clients."""
PAGES = sorted(page for page in DOCS.rglob("*.md") if "decisions" not in page.parts)
ADDRESS = "http://127.0.0.1:8000"
REFERENCE = re.compile(r"os\.environ/([A-Z_]+)")
DOCUMENTS = {"README.md": ROOT / "README.md"} | {page.relative_to(DOCS).as_posix(): page for page in PAGES}


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks, indented ones in lists too."""
    found = re.findall(rf"^( *)```{language}\b[^\n]*\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    return ["\n".join(line.removeprefix(indent) for line in block.split("\n")) for indent, block in found]


# Configurations -------------------------------------------------------------------------------------------------------


def configurations() -> Iterator[tuple[str, str]]:
    """Every whole configuration in the pages."""
    for name, page in DOCUMENTS.items():
        for at, block in enumerate(blocks(page.read_text(encoding="utf-8"), "yaml")):
            if re.search(r"^model_list:", block, re.MULTILINE):
                yield f"{name}:{at}", block


CONFIGURATIONS = dict(configurations())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_configuration_shown_is_one(name: str):
    assert Config.model_validate(yaml.safe_load(CONFIGURATIONS[name])).model_list


SECTIONS = re.findall(
    r"^## (.+?)\n(.*?)(?=^## |\Z)", (DOCS / "providers.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.anyio
@pytest.mark.parametrize(("provider", "text"), SECTIONS, ids=[provider for provider, _ in SECTIONS])
async def test_each_provider_is_reached_on_the_lane_its_section_says(
    provider: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    [block] = blocks(text, "yaml")
    for variable in REFERENCE.findall(block):
        monkeypatch.setenv(variable, "{}" if variable.startswith("VERTEX") else "sk-test")
    file = tmp_path / "config.yaml"
    file.write_text(block, encoding="utf-8")
    entries = model_entries(load(file).config)
    said = re.search(r"^Lane: `(\w+)`", text, re.MULTILINE)
    for entry in entries if said else ():
        assert said is not None
        assert (await whereabouts(entry)).lane == said[1]
    assert said is not None or provider == "Several at once"


# Commands -------------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    for name, page in DOCUMENTS.items():
        for block in (
            it for language in ("sh", "bash", "text", "console") for it in blocks(page.read_text("utf-8"), language)
        ):
            for line in block.replace("\\\n", " ").split("\n"):
                if line.startswith("callgate "):
                    yield name, re.split(r"\s{2,}|\s#|\s\|\s", line)[0]


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_every_command_shown_exists_with_its_options(page: str, line: str):
    words = shlex.split(line.replace("[", "").replace("]", ""), comments=True)[1:]
    group = typer.main.get_command(command)
    while words and isinstance(subcommands := getattr(group, "commands", None), dict):
        assert words[0] in subcommands or words[0].startswith("-"), f"{line!r}: there is no {words[0]!r}"
        if words[0].startswith("-"):
            break
        group = subcommands[words.pop(0)]
    options = {name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help",
        "-h",
    }
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in options, f"{line!r}: there is no option {word}"


# Snippets -------------------------------------------------------------------------------------------------------------


def snippets() -> Iterator[tuple[str, str, str]]:
    """Page, environment and text of what can be run as it stands."""
    for name, page in DOCUMENTS.items():
        marked = re.findall(
            r"<!-- runs in: (\S+) -->\n```(?:python|js)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        for environment, text in marked:
            yield name, environment, text


def cases_of_snippets() -> Iterator[Any]:
    """The first of each client, and of the large ones none: starting one takes seconds. `make clients` runs all."""
    played = set(LARGE)
    for page, environment, text in snippets():
        marks = [needs(f"environment:{environment}"), *([BY_MAKE_CLIENTS] if environment in played else [])]
        played |= {environment} - MANY
        yield pytest.param(page, environment, text, marks=marks)


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize(("page", "environment", "text"), [*cases_of_snippets()])
async def test_every_snippet_that_can_be_run_answers(page: str, environment: str, text: str, tmp_path: Path):
    home = Environment(environment)
    folder = home.folder if environment == NODE else tmp_path
    script = folder / f"snippet-{os.getpid()}.{'mjs' if environment == NODE else 'py'}"
    async with serve(create_app(load(ROOT / "config.yaml").config)) as url:
        script.write_text(text.replace(ADDRESS, url), encoding="utf-8")
        try:
            process = await asyncio.create_subprocess_exec(
                home.interpreter, script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder
            )
            async with asyncio.timeout(60):
                out, err = await process.communicate()
        finally:
            script.unlink()
    assert process.returncode == 0, err.decode()
    assert re.search(r"42|calculator|:\d\d", out.decode()), out.decode()


# Tables ---------------------------------------------------------------------------------------------------------------

CELL_WORDS = 30


def test_no_cell_of_a_table_is_a_paragraph():
    long: list[str] = []
    for name, page in DOCUMENTS.items():
        text = re.sub(r"^( *)```.*?^\1```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
            for cell in re.split(r"(?<!\\)\|", row):
                words = re.sub(r"`[^`]*`", "", re.sub(r"\]\([^)]*\)", "]", cell))
                if len(re.findall(r"\S*\w\S*", words)) > CELL_WORDS:
                    long.append(f"{name}: {cell.strip()}")
    assert long == [], "what needs more words stands below the table"


def test_every_code_of_an_error_is_explained_and_none_that_is_not_there():
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    explained = {
        code for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for code in re.findall(r"`([a-z_]+)`", row)
    }
    nodes = [
        node
        for _, tree in trees_with(["code=", *explained])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call | ast.Constant)
    ]
    used = {
        word.value.value
        for node in nodes
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "code" and isinstance(word.value, ast.Constant) and isinstance(word.value.value, str)
    }
    assert used - explained == set()
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert explained - texts == set()
