"""What `docs/tools.md` shows is what works: each example is read as a config, made into tools, and some are run."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callgate.calls.outcome import Outcome, Returned
from callgate.config.load import load
from callgate.parsers.landlock import landlock_abi
from callgate.tools.building import registry_of
from callgate.tools.kinds.command.launch import GRACE_SECONDS
from callgate.tools.kinds.command.process import DEFAULT_SIZE, CommandProcesses, ProcessLimits
from callgate.tools.kinds.command.settings import CommandLimits
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.registry import Registry
from callgate.tools.settings import ToolSection
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.tools.executor_kinds import ready, silent

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
[DOCUMENT] = [block for block in BLOCKS if block.startswith("openapi:")]
EXAMPLES = [block for block in BLOCKS if block != DOCUMENT]
MODELS = "model_list:\n  - model_name: demo\n    litellm_params: {model: demo/demo}\n"
VARIABLES = {"WEATHER_TOKEN": "w-1", "SHOP_KEY": "s-1"}


@asynccontextmanager
async def made(example: str, folder: Path) -> AsyncIterator[Registry]:
    (folder / "shop.yaml").write_text(DOCUMENT)
    (folder / "notes").mkdir()
    (folder / "notes" / "monday.txt").write_text("buy milk\nring up -e\n")
    (folder / "config.yaml").write_text(MODELS + example)
    web, threads, processes = Web(), ThreadPool(), CommandProcesses()
    config = load(folder / "config.yaml", environ=VARIABLES).config
    registry = registry_of(config, web, threads, processes)
    await registry.open()
    try:
        yield registry
    finally:
        await registry.close()
        await processes.close()
        await web.close()
        threads.close()


def example_of(name: str) -> str:
    [found] = [example for example in EXAMPLES if f"name: {name}\n" in example]
    return str(found)


async def run_tool(registry: Registry, name: str, **arguments: object) -> Outcome:
    toolbox = RequestToolbox(server_tools=ToolSet(registry.tools()), run_id="run_1")
    check = toolbox.offer[name].check
    assert check is not None
    assert check(arguments) is None
    return await toolbox.run(ready(name, **arguments), silent)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.needs("git")
async def test_every_example_makes_tools(example, tmp_path):
    if "paths:" in example and not landlock_abi():
        pytest.skip("this kernel has no Landlock")
    async with made(example, tmp_path) as registry:
        assert registry.tools()
        assert registry.quarantined() == ()


def test_every_setting_of_the_policy_is_explained_and_every_kind_has_its_chapter():
    for setting in ToolSection.model_fields:
        assert f"| `{setting}` |" in PAGE
    for kind in ("python", "http", "openapi", "command"):
        assert f"\n## {kind}\n" in PAGE


async def test_the_api_is_described_as_shown(tmp_path):
    async with made(example_of("shop"), tmp_path) as registry:
        [one] = registry.tools()
        assert (one.name, one.tool.source) == ("read_order", "GET https://shop.example.com/api/orders/{id}")


async def test_words_are_counted(tmp_path):
    async with made(example_of("count_words"), tmp_path) as registry:
        outcome = await run_tool(registry, "count_words", text="one two three")
        assert isinstance(outcome, Returned)
        assert outcome.text.split() == ["3"]


@pytest.mark.skipif(not landlock_abi(), reason="this kernel has no Landlock")
@pytest.mark.parametrize(("word", "found"), [("milk", "./monday.txt:buy milk\n"), ("bread", "")])
async def test_notes_are_found(tmp_path, word, found):
    async with made(example_of("find_notes"), tmp_path) as registry:
        assert await run_tool(registry, "find_notes", word=word) == Returned(found)


def test_the_defaults_that_it_names_are_the_defaults():
    limits, page = ProcessLimits(), " ".join(PAGE.split())
    assert f"processor seconds ({limits.cpu_seconds})" in page
    assert f"memory ({limits.memory_bytes >> 30} GiB)" in page
    assert f"a file it writes ({limits.file_bytes >> 20} MiB)" in page
    assert f"open files ({limits.open_files})" in page
    assert f"processes at once ({limits.processes})" in page
    assert f"At most {DEFAULT_SIZE} commands run at a time" in page
    assert f"killed {GRACE_SECONDS} seconds later" in page
    config = CommandLimits()
    assert ProcessLimits(**{name: getattr(config, name) for name in CommandLimits.model_fields}) == limits
