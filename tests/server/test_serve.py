"""`callgate serve`: where it listens, and what a small limit of open files leaves."""

import json
import shlex
import sys
from pathlib import Path

import httpx
import pytest

from tests.harness.process import READY, child

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("files", [256, 1024])
async def test_a_small_limit_of_open_files_is_logged_and_leaves_more_than_one_connection(files: int) -> None:
    shell = f"ulimit -n {files}; exec {shlex.quote(sys.executable)} -m callgate serve --port 0"
    async with child([], command=["bash", "-c", shell]) as started:
        url = (await started.line(READY)).group(0)
        warning = (await started.line("connections_limited")).string
        limited = json.loads(warning)
        assert (limited["level"], limited["open_files"]) == ("warning", files)
        assert files // 4 <= limited["connections"] <= files // 2
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            clients = [httpx.AsyncClient(base_url=url, trust_env=False) for _ in range(20)]
            for each in clients:
                assert (await each.get("/health/live")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 200
            for each in clients:
                await each.aclose()


@pytest.mark.parametrize("host", ["::", "::1"])
async def test_health_finds_a_server_on_any_address_of_this_machine(host: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "version: 1\nauth: off\nmodel_list:\n- {model_name: demo, litellm_params: {model: demo/demo}}\n"
    )
    options = ["--config", str(tmp_path / "config.yaml"), "--host", host, "--port", "0"]
    async with child(["serve", *options], fresh=True) as started:
        port = (await started.line(r":(\d+)  \(OpenAI")).group(1)
        async with child(["health"], environment={"CALLGATE_PORT": port}) as asking:
            assert await asking.ended() == 0, asking.log
        families = ["[::1]", "127.0.0.1"] if host == "::" else ["[::1]"]
        async with httpx.AsyncClient(trust_env=False) as client:
            for family in families:
                assert (await client.get(f"http://{family}:{port}/health/live")).status_code == 200
