"""What `from callgate import ...` gives, what it costs, and that tools of a project of one's own are found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import callgate
from tests.chaos.scale import held_to, scaled
from tests.harness.clients import openai_client, whole
from tests.harness.process import ROOT, serving_command
from tests.scripted_upstream import Call, Reply, Upstream

NAMES = "tool, start, stop, Context, ToolError, Image, ToolCallBuffer, ToolUseBuffer"
IMPORT_SECONDS = 0.05


def test_every_public_name_is_there_and_nothing_else_is_promised():
    assert set(callgate.__all__) == set(NAMES.split(", "))
    assert set(callgate.__all__) <= set(dir(callgate))
    for name in callgate.__all__:
        assert getattr(callgate, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        callgate.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_public_names_load_in_no_time_and_without_the_server(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {
        "PYTHONPATH": str(ROOT / "app"),
        "PYTHONPYCACHEPREFIX": str(tmp_path),
    }  # the first run compiles, the others load
    program = f"""
import json, sys, time
began = time.process_time()
from callgate import {NAMES}
print(json.dumps([time.process_time() - began, sorted(sys.modules)]))
"""
    took = []
    for _ in range(scaled(1, 5)):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, modules = json.loads(ran.stdout)
        took.append(seconds)
    assert not {"fastapi", "litellm", "pydantic", "uvicorn", "asyncio"} & set(modules)
    held_to(IMPORT_SECONDS, "the public names are imported, of the processor", min(took))


def test_type_checkers_see_the_public_names(tmp_path):
    (tmp_path / "typed.py").write_text(
        """
from callgate import Context, Image, ToolCallBuffer, ToolError, ToolUseBuffer, tool

@tool(safety="read_only")
def lookup(word: str, context: Context) -> Image:
    context.progress("looking", 0.5)
    if not word:
        raise ToolError("Give me a word.")
    return Image(b"png", "image/png")

reveal_type(lookup)
reveal_type(ToolCallBuffer)
reveal_type(ToolUseBuffer)
lookup("word", "no context")
"""
    )
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache'}", "typed.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "app")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        "def (word: str, context: callgate.tools.kinds.python.authoring.Context) -> callgate.calls.outcome.Image"
        in ran.stdout
    )
    assert "callgate.calls.buffer.ToolCallBuffer" in ran.stdout
    assert "callgate.text_calls.blocks.ToolUseBuffer" in ran.stdout
    assert ran.stdout.count("error:") == 1
    assert '"lookup" has incompatible type "str"; expected "Context"' in ran.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project laid out as FastAPI's are: an `app` of its own, and tools beside its config."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "services.py").write_text(
        """
def convert(amount: float) -> str:
    \"\"\"Convert an amount.\"\"\"
    return f"{amount * 2:g} crowns"
"""
    )
    (tmp_path / "tools.py").write_text(
        """
from callgate import Context, tool

@tool
async def greet(name: str, context: Context) -> str:
    \"\"\"Greet somebody.\"\"\"
    return f"hello {name} from {context.run_id[:4]}"
"""
    )
    return tmp_path


def config_of(project: Path, upstream: str = "http://127.0.0.1:1/v1") -> Path:
    path = project / "config.yaml"
    path.write_text(
        json.dumps(
            {
                "model_list": [
                    {
                        "model_name": "m",
                        "litellm_params": {"model": "openai/m", "api_base": upstream, "api_key": "sk-upstream"},
                        "tools": ["*"],
                    }
                ],
                "tools": [
                    {"kind": "python", "function": "app.services:convert"},
                    {"kind": "python", "module": "tools"},
                ],
            }
        )
    )
    return path


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_project_with_an_app_of_its_own_serves_its_tools_from_the_wheel(installed, project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    async with Upstream() as upstream:
        asked = Reply(calls=[Call("convert", {"amount": 21}), Call("greet", {"name": "Ada"})])
        upstream.script("m", [asked, Reply(text="42 crowns for Ada")])
        config = config_of(project, upstream.url)
        async with (
            serving_command(
                config, command=[str(installed / "callgate")], environment={"PYTHONPATH": ""}, folder=elsewhere
            ) as served,
            openai_client(served.url) as client,
        ):
            answer = await whole(client, model="m", messages=[{"role": "user", "content": "go"}])
    assert answer.choices[0].message.content == "42 crowns for Ada"
    results = [message["content"] for message in upstream.requests[1].body["messages"] if message["role"] == "tool"]
    assert results == ["42 crowns", "hello Ada from run_"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "command", "said"),
    [
        (("callgate",), ("check",), "fine; 1 model, 2 tools"),
        (("python", "-m", "callgate"), ("tools", "list"), "greet"),
        (("callgate",), ("tools", "call", "convert", '{"amount": 21}'), "42 crowns"),
    ],
)
def test_commands_find_what_lies_beside_the_config(installed, project, tmp_path_factory, start, command, said):
    ran = subprocess.run(
        [str(installed / start[0]), *start[1:], *command, "--config", str(config_of(project))],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert said in ran.stdout


@pytest.mark.slow
def test_an_installed_command_does_not_stumble_over_the_folder_it_is_started_in(installed, project):
    ran = subprocess.run(
        [str(installed / "python"), "-m", "callgate", "check"],
        cwd=project,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ".", "CALLGATE_CONFIG": str(config_of(project))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
