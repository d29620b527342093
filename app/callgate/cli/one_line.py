"""Makes a config from the command line: `callgate serve --model openai/gpt-5 --tool my_tools.py --mcp "npx -y …"`."""

import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import typer
import yaml

from callgate.cli.providers import litellm_params
from callgate.models.providers import DEFAULT
from callgate.tools.kinds.python.own_modules import make_importable

RUNNERS = frozenset({"npx", "uvx", "bunx", "pnpx", "pipx", "node", "python", "python3", "docker", "uv", "deno"})
"""Programs that start the MCP server that their arguments name."""
_NOT_A_NAME = frozenset({"run", "exec", "dlx", "tool", "mcp"})
DEMO = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}


def config_text(
    models: Sequence[str], tools: Sequence[str], servers: Sequence[str], base_url: str | None = None
) -> str:
    """Return the config for these flags as YAML."""
    entries = [model_entry(model, base_url) for model in models] or [dict(DEMO)]
    named: dict[str, Any] = {}
    for option in servers:
        name, server = mcp_server(option, named)
        named[name] = server
    python = [{"kind": "python", **python_tool(option)} for option in tools]
    if python or named:
        entries = [{**entry, "tools": ["*"]} for entry in entries]
    return yaml.safe_dump({"model_list": entries, "tools": python, "mcp_servers": named}, sort_keys=False)


def mcp_server(option: str, used_names: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return a name and an entry for an MCP server from `[NAME=]COMMAND` or `[NAME=]URL`."""
    prefix = re.match(r"([A-Za-z0-9_-]{1,40})=(?=\S)", option)
    text = option
    if prefix:
        text = option[prefix.end() :]
    if re.match(r"https?://", text):
        name = re.sub(r"^(?:mcp|www|api)\.", "", re.split(r"[/:]", text.split("://", 1)[1])[0]).split(".")[0]
        entry: dict[str, Any] = {"url": text}
    else:
        try:
            command, *arguments = shlex.split(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} cannot be taken apart as a shell would: {error}") from None
        name = _name_of(command, arguments)
        entry = {"command": command, "args": arguments}
    if prefix:
        name = prefix[1]
    return free_name(name, used_names), entry


def free_name(name: str, used_names: Iterable[str]) -> str:
    """Return the name, with a number if it is taken."""
    unavailable = set(used_names)
    candidates = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in unavailable)


def model_entry(option: str, base_url: str | None = None) -> dict[str, Any]:
    """Return the entry for `[NAME=]PROVIDER/MODEL`; the default name is `PROVIDER/MODEL`."""
    name, equals, model = option.partition("=")
    if not equals:
        name = option
        model = option
    if "/" not in model:
        model = f"{DEFAULT}/{model}"
    if model == "demo/demo":
        return dict(DEMO)
    return {"model_name": name, "litellm_params": litellm_params(model, base_url)}


def python_tool(option: str) -> dict[str, str]:
    """Return the entry for `FILE.py`, `FILE.py:function`, `package.module` or `package.module:function`."""
    place, colon, function = option.partition(":")
    if place.endswith(".py"):
        file = Path(place).expanduser()
        if not file.is_file():
            raise typer.BadParameter(f"--tool {option}: there is no file {file}")
        if not file.stem.isidentifier():
            legal = re.sub(r"^(?=\d)|\W", "_", file.stem)
            raise typer.BadParameter(f"--tool {option}: {file.stem!r} cannot be imported; call the file {legal}.py")
        make_importable(file.resolve().parent)
        place = file.stem
    if colon:
        return {"function": f"{place}:{function}"}
    return {"module": place}


def _name_of(command: str, arguments: Sequence[str]) -> str:
    """Return a short name for a server: `filesystem` for `npx -y @modelcontextprotocol/server-filesystem@1.2 .`"""
    program = Path(command).name
    words = [word for word in arguments if not word.startswith("-") and word not in _NOT_A_NAME]
    package = words[0] if program in RUNNERS and words else program
    last = re.split(r"[@=]", package.removeprefix("@").rpartition("/")[2])[0].removesuffix(".py").removesuffix(".js")
    short = re.sub(r"^(?:mcp[-_])?(?:server[-_])?|(?:[-_]mcp)?(?:[-_]server)?$", "", last)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", short)[:40] or "mcp"
