"""`callgate serve`, and `callgate health`, which asks a running server whether it is alive."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

import typer

from callgate.cli.shared import (
    NO_FOLDER,
    WRONG,
    ConfigOption,
    check_exposure,
    check_reachable,
    count_keys,
    give_up,
    read_config,
)
from callgate.stand_ins import without
from callgate.telemetry.terminal import say

if TYPE_CHECKING:
    from callgate.config.load import Loaded

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
    with _without_collecting():
        _load_lightly()
        flags = {"server.host": host, "server.port": port, "server.workers": workers, "logging.level": log_level}
        text = None
        if model or tool or mcp or base_url:
            if config is not None or os.environ.get("CALLGATE_CONFIG"):
                raise give_up(
                    "--model, --tool, --mcp and --base-url stand in place of a config file: leave out one or the other"
                )
            from callgate.cli.one_line import config_text

            text = config_text(model or (), tool or (), mcp or (), base_url)
        loaded = read_config(config, flags, text=text)
        if create_key:
            _create_first_key(loaded)
        check_exposure(loaded, with_unknown_keys=True)
        from callgate.cli.making import made
        from callgate.cli.warnings import warnings_of
        from callgate.config.load import load
        from callgate.server.serve import serve as run_server
        from callgate.tools.kinds.python.own_modules import hiding

        _, registry = made(loaded)
        check_reachable(loaded, may_be_away=True)
        for warning in hiding(loaded.folder()):
            say(f"warning: {warning}", err=True)
        for warning in warnings_of(loaded, registry):
            say(f"warning: {warning}", err=True)
        raise typer.Exit(run_server(loaded, lambda: load(config, flags=flags, text=text)))


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Nearly all objects of the start stay alive; the server freezes them and enables the collector."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _create_first_key(loaded: "Loaded") -> None:
    """Create a key and print it, which is not logged."""
    from callgate.access.commands import keeps_keys, key_store

    if not keeps_keys(loaded.config):
        raise give_up(f"--create-key keeps the key in the key store, and {NO_FOLDER}")
    if count_keys(loaded.config):
        return
    from callgate.access.keys import KeyEntry, mint_key

    key, digest = mint_key()
    store = key_store(loaded.config)
    store.add(KeyEntry("first", digest, approve=True, admin=True))
    store.close()
    say(f"key (made now, shown this once): {key}", err=True)


def _load_lightly() -> None:
    """Import three libraries without what is not used of them, which takes six megabytes and an eighth of the start's time.

    structlog imports rich if it is installed, to colour tracebacks. FastAPI has forty models of the OpenAPI document, which
    are needed when it is requested, and ways to declare credentials, which are never. uvicorn has a command line.
    """
    if not sys.modules.keys() & {"rich", "structlog"}:
        sys.modules["rich"] = None  # type: ignore[assignment]  # what makes an import fail
        import structlog  # noqa: F401

        del sys.modules["rich"]
    with without("fastapi.openapi.models", "fastapi.security", "fastapi.security.base", "fastapi.security.oauth2"):
        import fastapi  # noqa: F401
    with without("uvicorn.main"):
        import uvicorn
    from uvicorn.server import Server

    uvicorn.Server = Server  # type: ignore[misc]  # of which one may be derived


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
