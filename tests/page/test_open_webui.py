"""Open WebUI in a browser, in front of a served Callgate: the answer, status lines while tools run, and who is asked for titles.

`CALLGATE_OPEN_WEBUI` is the program, as `pip install open-webui` leaves it; it brings two gigabytes, and so is in no environment here.
"""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.configs import config_dict
from tests.harness.needs import needs
from tests.harness.process import child
from tests.harness.server import serve
from tests.page.browsers import chromium
from tests.page.served import keyring
from tests.scripted_upstream import Call, Reply, Upstream

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    needs("env:CALLGATE_OPEN_WEBUI", "environment:page", "chromium-headless-shell"),
]

PROGRAM = os.environ.get("CALLGATE_OPEN_WEBUI", "")
START_SECONDS = 200
"""Its first start makes a database."""


@asynccontextmanager
async def open_webui(callgate: str, key: str, folder: Path) -> AsyncIterator[str]:
    """As `docker-compose.yml` sets it up."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    environment = {
        "OPENAI_API_BASE_URL": f"{callgate}/v1",
        "OPENAI_API_KEY": key,
        "ENABLE_OLLAMA_API": "false",
        "TASK_MODEL_EXTERNAL": "titles",
        "WEBUI_AUTH": "false",
        "WEBUI_SECRET_KEY": "of-this-test",
        "DATA_DIR": str(folder),
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "RAG_EMBEDDING_ENGINE": "openai",  # or it would look for a model of its own
        "ANONYMIZED_TELEMETRY": "false",
        "PYTHONPATH": "",
    }
    words = [PROGRAM, "serve", "--host", "127.0.0.1", "--port", port]
    async with child([], command=words, environment=environment, folder=folder) as started:
        await started.line(r"Scheduler worker started", START_SECONDS)
        yield f"http://127.0.0.1:{port}"


async def test_tools_are_status_lines_and_titles_are_asked_of_a_model_without_tools(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("gpt", [Reply(calls=[Call("get_weather", {"city": "Oslo"})]), Reply("It is 4 °C in Oslo.")])
    upstream.script("titles", [Reply('{"title": "Warmth of the north"}')] * 9)
    keys, sections = keyring(webui={"events": "openwebui"})
    config = config_dict(upstream.url, models=["gpt", "titles"], tools=("get_weather",), **sections)
    config["model_list"][1]["tools"] = []
    async with (
        serve(create_app(Config.model_validate(config))) as url,
        open_webui(url, keys["webui"], tmp_path) as address,
        chromium() as browser,
    ):
        page = await browser.new_page()
        await page.goto(f"{address}/?models=gpt")
        await page.get_by_role("button", name="Okay, Let's Go!").click(timeout=60_000)  # what is new in it
        await page.locator("#chat-input").click()
        await page.keyboard.type("How warm is it in Oslo?")
        await page.keyboard.press("Enter")
        await page.get_by_text("get_weather done").wait_for()
        await page.get_by_text("It is 4 °C in Oslo.").wait_for()
        await page.get_by_text("Warmth of the north", exact=True).first.wait_for()

    asked = [(each.body["model"], bool(each.body.get("tools"))) for each in upstream.requests]
    assert asked.count(("gpt", True)) == 2
    assert {each for each in asked if each[0] == "titles"} == {("titles", False)}
