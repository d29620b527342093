"""`callgate serve`, and `callgate health`, which asks a running server whether it is alive."""

import gc
import os
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

import typer

from callgate.cli.shared import (
    WRONG,
    ConfigOption,
    check_exposure,
    count_keys,
    give_up,
    read_config,
)

if TYPE_CHECKING:
    from callgate.config.load import Loaded

HEALTH_SECONDS = 5.0


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 lets the system choose.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    create_key: Annotated[
        bool, typer.Option("--create-key", help="Make a key with every right and print it, if there never was a key.")
    ] = False,
) -> None:
    """Serve until a signal ends it."""
    gc.disable()  # nearly all that is made while starting stays; the server puts it aside and looks for garbage from then on
    _load_lightly()
    flags = {"server.host": host, "server.port": port, "logging.level": log_level}
    loaded = read_config(config, flags)
    if create_key:
        _create_first_key(loaded)
    check_exposure(loaded)
    from callgate.cli.making import made
    from callgate.config.load import load
    from callgate.server.serve import serve as run_server

    made(loaded)
    raise typer.Exit(run_server(loaded, lambda: load(config, flags=flags)))


def _create_first_key(loaded: "Loaded") -> None:
    """Printed and not logged: it is shown once, to whoever started the server."""
    if loaded.config.data_dir is None:
        raise give_up("--create-key keeps the key in the key store, and the config has no `data_dir`")
    if count_keys(loaded.config):
        return
    from callgate.auth.keys import KeyEntry, mint_key
    from callgate.cli.keys import key_store

    key, digest = mint_key()
    store = key_store(loaded.config.data_dir)
    store.add(KeyEntry("first", digest, approve=True, admin=True))
    store.close()
    typer.echo(f"key (made now, shown this once): {key}", err=True)


def _load_lightly() -> None:
    """Two libraries load and make what is never used here: together six megabytes, and a tenth of the time to start.

    structlog takes rich where it finds it, to colour tracebacks, and ours are plain. FastAPI has forty models of the OpenAPI
    document, which wait for somebody who asks for it.
    """
    if not sys.modules.keys() & {"rich", "structlog"}:
        sys.modules["rich"] = None  # type: ignore[assignment]  # what makes an import fail
        import structlog  # noqa: F401

        del sys.modules["rich"]
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True
    import fastapi.openapi.models  # noqa: F401

    del BaseModel.model_config["defer_build"]


def health(
    url: Annotated[
        str | None, typer.Option(help="Where the server is. Default: this machine, $CALLGATE_PORT or 8000.")
    ] = None,
) -> None:
    """Ask a running server whether it is alive. Exit code 0 if it is; for container health checks."""
    from callgate.cli.server_client import DEFAULT_PORT, status_of
    from callgate.http.interface import TransportError

    port = os.environ.get("CALLGATE_PORT", DEFAULT_PORT)
    why = ""
    for base in (url,) if url else (f"http://127.0.0.1:{port}", f"http://[::1]:{port}"):
        try:
            status = status_of(base, HEALTH_SECONDS)
        except TransportError as error:
            why = why or f"{base}: {error}"
            continue
        if status == HTTPStatus.OK:
            typer.echo(f"{base}: {status}")
            return
        why = f"{base}: HTTP {status}"
    typer.echo(why, err=True)
    raise typer.Exit(WRONG)
