"""Makes a config from the command line: `callgate serve --model openai/gpt-5 --tool my_tools.py --mcp "npx -y …"`."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from callgate.cli.providers import litellm_params
from callgate.tools.own_modules import make_importable

RUNNERS = frozenset({"npx", "uvx", "bunx", "pnpx", "pipx", "node", "python", "python3", "docker", "uv", "deno"})
"""Programs that start the MCP server that their arguments name."""
_NOT_A_NAME = frozenset({"run", "exec", "dlx", "tool", "mcp"})
DEMO = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}


def config_text(
    models: Sequence[str], tools: Sequence[str], servers: Sequence[str], base_url: str | None = None
) -> str:
    """Return the config for these flags as YAML."""
    entries = [model_entry(each, base_url) for each in models] or [dict(DEMO)]
    named: dict[str, Any] = {}
    for each in servers:
        name, server = mcp_server(each, named)
        named[name] = server
    python = [{"kind": "python", **python_tool(each)} for each in tools]
    if python or named:
        entries = [{**entry, "tools": ["*"]} for entry in entries]
    return yaml.safe_dump({"model_list": entries, "tools": python, "mcp_servers": named}, sort_keys=False)


def mcp_server(option: str, taken: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return a name and an entry for an MCP server from `[NAME=]COMMAND` or `[NAME=]URL`."""
    found = re.match(r"([A-Za-z0-9_-]{1,40})=(?=\S)", option)
    text = option[found.end() :] if found else option
    if re.match(r"https?://", text):
        name = re.sub(r"^(?:mcp|www|api)\.", "", re.split(r"[/:]", text.split("://", 1)[1])[0]).split(".")[0]
        entry: dict[str, Any] = {"url": text}
    else:
        try:
            command, *arguments = shlex.split(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} cannot be taken apart as a shell would: {error}") from None
        name, entry = _name_of(command, arguments), {"command": command, "args": arguments}
    name = found[1] if found else name
    return free_name(name, taken), entry


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return the name, with a number if it is taken."""
    return next(each for n in range(1, 1000) if (each := name if n == 1 else f"{name}_{n}") not in set(taken))


def model_entry(option: str, base_url: str | None = None) -> dict[str, Any]:
    """Return the entry for `[NAME=]PROVIDER/MODEL`; the default name is `PROVIDER/MODEL`."""
    name, equals, model = option.partition("=")
    model = model if equals else option
    if "/" not in model:
        model = f"openai/{model}"
    if model == "demo/demo":
        return dict(DEMO)
    return {"model_name": name if equals else option, "litellm_params": litellm_params(model, base_url)}


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
    return {"function": f"{place}:{function}"} if colon else {"module": place}


def _name_of(command: str, arguments: Sequence[str]) -> str:
    """Return a short name for a server: `filesystem` for `npx -y @modelcontextprotocol/server-filesystem@1.2 .`"""
    program = Path(command).name
    words = [each for each in arguments if not each.startswith("-") and each not in _NOT_A_NAME]
    package = words[0] if program in RUNNERS and words else program
    last = re.split(r"[@=]", package.removeprefix("@").rpartition("/")[2])[0].removesuffix(".py").removesuffix(".js")
    short = re.sub(r"^(?:mcp[-_])?(?:server[-_])?|(?:[-_]mcp)?(?:[-_]server)?$", "", last)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", short)[:40] or "mcp"
