"""`callgate mcp serve` and `install`: the tools for MCP clients that start programs, and what clients are told of a server."""

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from callgate.cli.options import ConfigOption
from callgate.cli.server_client import UrlOption, address_of, fail_with
from callgate.cli.shared import read_config
from callgate.telemetry.terminal import say

if TYPE_CHECKING:
    from callgate.config.load import Loaded
    from callgate.mcp_server.stdio import Post

LOOK_SECONDS = 0.3
"""How long it takes at most to find out that no server runs here."""
CLIENTS = ("claude", "cursor", "vscode")

KeyEnvOption = Annotated[
    str, typer.Option("--key-env", metavar="NAME", help="The environment variable that has the key.")
]


def add_serving(mcp: typer.Typer) -> None:
    """Add the commands to the group."""
    mcp.command("serve")(serve_tools)
    mcp.command("install")(install)


def serve_tools(config: ConfigOption = None, url: UrlOption = None, key_env: KeyEnvOption = "CALLGATE_KEY") -> None:
    """Speak MCP on standard input and output: for the server that runs, else with the config's tools in this process."""
    from callgate.mcp_server.stdio import private_output

    output = private_output()
    key = os.environ.get(key_env)
    try:
        if url is not None or _runs(address_of(None)):
            asyncio.run(_bridged(address_of(url), key, output))
            return
        loaded = read_config(config)
        _log_to_standard_error(loaded)
        asyncio.run(_served_here(loaded, key, output))
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _bridged(address: str, key: str | None, output: Any) -> None:
    from callgate.http.client import HttpClient
    from callgate.mcp_server.stdio import HttpPost

    client = HttpClient()
    try:
        await _passed_on(HttpPost(client, f"{address}/mcp"), key, output)
    finally:
        await client.close()


async def _served_here(loaded: "Loaded", key: str | None, output: Any) -> None:
    from callgate.application import create_app
    from callgate.mcp_server.stdio import AppPost

    app = create_app(loaded.config)
    async with app.router.lifespan_context(app):
        await _passed_on(AppPost(app), key, output)


async def _passed_on(post: "Post", key: str | None, output: Any) -> None:
    from callgate.mcp_server.stdio import StdioBridge, line_writer, read_lines

    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    read_lines(sys.stdin.buffer, lines)
    await StdioBridge(post, line_writer(output), key).run(lines)


def _runs(address: str) -> bool:
    """Return whether a server answers there."""
    from callgate.cli.server_client import status_of
    from callgate.http.interface import TransportError

    try:
        return status_of(address, LOOK_SECONDS) == 200
    except TransportError:
        return False


def _log_to_standard_error(loaded: "Loaded") -> None:
    from callgate.config import redaction
    from callgate.telemetry import logs

    logging = loaded.config.logging
    logs.configure(redaction.current, level=logging.level, format=logging.format, stream=sys.stderr)


def install(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="claude, cursor or vscode.")],
    url: UrlOption = None,
    key_env: KeyEnvOption = "CALLGATE_KEY",
    over: Annotated[
        Literal["http", "stdio"] | None,
        typer.Option("--over", help="How the client reaches it. Default: http; stdio for Claude Desktop."),
    ] = None,
) -> None:
    """Print the block for a client's own settings. Nothing is written."""
    if client not in CLIENTS:
        raise fail_with(f"no block for {client!r} is known: {', '.join(CLIENTS)}")
    address = f"{address_of(url)}/mcp"
    if over == "stdio":
        args = ["mcp", "serve", "--key-env", key_env]
        if url is not None:
            args += ["--url", address_of(url)]
        entry: dict[str, Any] = {"command": "callgate", "args": args}
    else:
        entry = {"url": address, "headers": {"Authorization": f"Bearer {_variable(client, key_env)}"}}
        if client != "cursor":
            entry = {"type": "http", **entry}
    block: dict[str, Any] = {"mcpServers": {"callgate": entry}}
    if client == "vscode":
        block = {"servers": {"callgate": entry}}
    places = {"claude": ".mcp.json", "cursor": "~/.cursor/mcp.json", "vscode": ".vscode/mcp.json"}
    say(f"# {places[client]}", err=True)
    say(json.dumps(block, indent=2))


def _variable(client: str, name: str) -> str:
    """Return how a client's settings name a variable of the environment."""
    if client == "claude":
        return f"${{{name}}}"
    return f"${{env:{name}}}"
