"""What serving costs before anybody asks for anything: only the modules that are needed."""

import json
import random
import signal
import sys
from pathlib import Path
from subprocess import run

import pytest
from typer.testing import CliRunner

from callgate.cli import starting
from callgate.cli.starting import FIELDS, ServeOptions, options_fast
from callgate.commands import app
from tests.harness.clients import http_client, openai_client
from tests.harness.process import READY, child, child_environment, serving_command

pytestmark = pytest.mark.anyio

DEMO = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
NOT_FOR_THE_DEMO = {
    "aiohttp": "the other client for models",
    "attr": "rich has it loaded",
    "httpx": "tools on the network",
    "httpx2": "tools on the network",
    "litellm": "providers that only it speaks",
    "mcp": "tool servers",
    "openai": "clients, and litellm",
    "pydantic.v1": "FastAPI has it loaded for a parameter of a route",
    "redis": "several processes with one store",
    "rich": "structlog and typer have it loaded where they can",
    "tiktoken": "litellm has it loaded",
    "typer": "help, other commands, and options that are not plain",
}
"""What nobody needs who serves the demo, and who would have it loaded."""


async def test_serving_the_demo_loads_nothing_that_it_does_not_need():
    async with child(["serve", "--port", "0"], module="tests.cli.modules_at_the_end") as started:
        url = (await started.line(READY)).group(0)
        async with openai_client(url) as client:
            answer = await client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hello"}])
        assert answer.choices[0].message.content
        started.signal(signal.SIGTERM)
        assert await started.ended() == 0
        loaded = (await started.line("^loaded: ")).string.split()
    assert {"fastapi", "structlog", "uvloop"} <= set(loaded)
    assert not [name for name in NOT_FOR_THE_DEMO if name in loaded]


def test_what_is_held_back_while_loading_is_there_afterwards(monkeypatch: pytest.MonkeyPatch):
    for name in ("rich", "structlog"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    starting._load_lightly()
    import rich
    from fastapi.openapi.models import OpenAPI
    from pydantic import BaseModel

    assert rich.get_console is not None
    assert "defer_build" not in BaseModel.model_config
    assert OpenAPI.model_validate({"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}}).paths == {}


VALUES = (
    "a.yaml",
    "./b/c.yaml",
    "~/d",
    "127.0.0.1",
    "::1",
    "[::1]",
    "0",
    "8080",
    "007",
    "+1",
    "-1",
    "1_0",
    " 1",
    "1.0",
    "debug",
    "x=y",
    "",
    "-",
    "--",
    "ü",
)
NAMES = (*FIELDS, "--conf", "--create-key", "--model", "--help", "-h", "-cx.yaml", "--", "serve", "x.yaml")


@pytest.mark.parametrize("seed", range(6))
def test_plain_options_are_read_as_typer_reads_them(monkeypatch: pytest.MonkeyPatch, seed: int):
    read: list[ServeOptions] = []

    def note(options: ServeOptions) -> int:
        read.append(options)
        return 0

    monkeypatch.setattr("callgate.cli.serving.start", note)
    chosen = random.Random(seed)
    taken = 0
    for _ in range(200):
        arguments: list[str] = []
        for _ in range(chosen.choice((0, 1, 1, 2, 3))):
            name = chosen.choice(NAMES if chosen.random() < 0.3 else tuple(FIELDS))
            value = chosen.choice(VALUES)
            arguments += chosen.choice(([name, value], [name, value], [name], [f"{name}={value}"]))
        options = options_fast(arguments)
        if options is None:
            continue
        taken += 1
        read.clear()
        ended = CliRunner().invoke(app, ["serve", *arguments])
        assert (ended.exit_code, read) == (0, [options]), (arguments, ended.output)
    assert taken > 20


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--config", "nowhere.yaml"], 2, "callgate: nowhere.yaml: cannot be read: No such file or directory"),
        (["--config", "nowhere.yaml", "--tool", "a.py"], 2, "callgate: --model, --tool, --mcp and --base-url stand in"),
        (["--port", "99999"], 2, "callgate: command line: --port: should be less than or equal to 65535"),
        (["--port", "x"], 2, "Invalid value for '--port'"),
        (["nowhere.yaml"], 2, "did you mean --config nowhere.yaml?"),
    ],
)
def test_a_start_that_fails_says_why_whoever_reads_its_options(
    tmp_path: Path, options: list[str], code: int, said: str
):
    command = [sys.executable, "-m", "callgate", "serve", *options]
    ended = run(command, capture_output=True, text=True, cwd=tmp_path, env=child_environment(), check=False)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_the_first_start_makes_a_key_and_prints_it_and_later_ones_do_not(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"model_list": [DEMO], "data_dir": str(tmp_path / "data")}))
    async with serving_command(config, "--create-key") as started:
        key = (await started.line(r"^key \(made now, shown this once\): (cg-\S+)")).group(1)
        async with http_client(started.url) as client:
            assert (await client.get("/v1/models")).status_code == 401
            allowed = await client.get("/v1/approvals", headers={"Authorization": f"Bearer {key}"})
            assert allowed.status_code == 200
        assert started.log.count(key) == 1
    async with serving_command(config, "--create-key") as again, http_client(again.url) as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})).status_code == 200
        assert "cg-" not in again.log


def test_a_first_key_needs_somewhere_to_be_kept(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"model_list": [DEMO]}))
    result = CliRunner().invoke(app, ["serve", "--create-key", "--config", str(config)])
    assert result.exit_code == 2
    assert "--create-key keeps the key in the key store, and the config has no `data_dir`" in result.output


def test_to_serve_no_other_command_is_imported():
    script = (
        "import sys; sys.argv = ['callgate', 'serve', '--help']; from callgate.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print('callgate.commands' in sys.modules)"
    )
    done = run([sys.executable, "-c", script], capture_output=True, text=True, env=child_environment(), check=True)
    whole = CliRunner().invoke(app, ["serve", "--help"], prog_name="callgate")
    assert done.stdout.split() == [*whole.stdout.split(), "False"]


USES_WHAT_WAS_HELD_BACK = """
import sys
from callgate.cli.starting import _load_lightly

_load_lightly()
assert not sys.modules.keys() & {"click", "fastapi.openapi.models", "fastapi.security", "rich", "uvicorn.main"}

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.security import OAuth2PasswordBearer, SecurityScopes

app = FastAPI()

@app.get("/own")
async def own(token: str = Depends(OAuth2PasswordBearer(tokenUrl="t")), scopes: SecurityScopes = None): ...

class Server(uvicorn.Server): ...

assert issubclass(Server, uvicorn.server.Server)
assert uvicorn.run.__name__ == "run" and uvicorn.run.real() is sys.modules["uvicorn.main"].run
print(app.openapi()["components"]["securitySchemes"]["OAuth2PasswordBearer"]["type"])
"""


def test_a_tool_may_use_of_the_libraries_what_serving_does_without():
    command = [sys.executable, "-c", USES_WHAT_WAS_HELD_BACK]
    done = run(command, capture_output=True, text=True, env=child_environment(), check=False)
    assert (done.stdout, done.stderr) == ("oauth2\n", "")
