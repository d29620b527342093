"""`callgate serve`, and `callgate health`, which asks a running server whether it is alive."""

import os
from http import HTTPStatus
from typing import Annotated

import typer

from callgate.cli.options import ConfigOption
from callgate.cli.shared import WRONG, read_config
from callgate.cli.starting import ServeOptions, start
from callgate.telemetry.terminal import say

HEALTH_SECONDS = 5.0


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", metavar="PORT", help="The port to listen on; 0 lets the system choose."),
    ] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="How many processes serve. Several need `store.redis_url`.")
    ] = None,
    create_key: Annotated[
        bool, typer.Option("--create-key", help="Make a key with every right and print it, if there never was a key.")
    ] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]PROVIDER/MODEL", help="Without a config file: a model to serve; repeat."),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py", help="Without a config file: tools in Python, also package.module; repeat."),
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]COMMAND|URL", help="Without a config file: an MCP server; repeat."),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Without a config file: where the models are, if not at their provider."),
    ] = None,
) -> None:
    """Serve until a signal ends it.

    Without a config file: callgate serve --model openai/gpt-5 --tool my_tools.py --mcp "npx -y @scope/server ."
    """
    options = ServeOptions(
        config=config,
        host=host,
        port=port,
        log_level=log_level,
        workers=workers,
        create_key=create_key,
        models=model or (),
        tools=tool or (),
        mcp_servers=mcp or (),
        base_url=base_url,
    )
    raise typer.Exit(start(options))


def health(
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the server is. Default: this machine, $CALLGATE_PORT or 8000."),
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker", help="Ask the ledger instead whether a worker of this machine was seen.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Ask a running server whether it is alive. Exit code 0 if it is; for container health checks."""
    if worker:
        from callgate.fleet.commands import check_worker

        check_worker(read_config(config, without_variables=True).config)
        return
    from callgate.cli.server_client import DEFAULT_PORT, hint_at_start, status_of
    from callgate.http.interface import TransportError

    port = os.environ.get("CALLGATE_PORT", DEFAULT_PORT)
    why = ""
    if url:
        bases = [url]
    else:
        bases = [f"http://127.0.0.1:{port}", f"http://[::1]:{port}"]
    for base in bases:
        try:
            status = status_of(base, HEALTH_SECONDS)
        except TransportError as error:
            why = why or f"{base}: {error}{hint_at_start(error)}"
            continue
        if status == HTTPStatus.OK:
            say(f"{base}: {status}")
            return
        why = f"{base}: HTTP {status}"
    say(why, err=True)
    raise typer.Exit(WRONG)
