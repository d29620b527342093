"""Starts the server with the options of `callgate serve`.

Typer reads them, which takes a twentieth of the start, unless they are as plain as they nearly always are.
"""

import contextlib
import gc
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callgate.cli.shared import (
    NO_FOLDER,
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


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `callgate serve`."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    log_level: str | None = None
    workers: int | None = None
    create_key: bool = False
    models: Sequence[str] = ()
    tools: Sequence[str] = ()
    mcp_servers: Sequence[str] = ()
    base_url: str | None = None

    def stand_for_a_file(self) -> bool:
        return bool(self.models or self.tools or self.mcp_servers or self.base_url)


FIELDS: Final = {
    "--config": "config",
    "-c": "config",
    "--host": "host",
    "--port": "port",
    "-p": "port",
    "--log-level": "log_level",
    "--workers": "workers",
}
"""The options that are read here, and the fields that have them."""
_PLAIN = re.compile(r"[A-Za-z0-9_./~@][A-Za-z0-9_./~@:,+-]*")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def options_fast(arguments: Sequence[str]) -> ServeOptions | None:
    """Read the arguments behind `serve`: equals what typer makes of them for every list, or returns None. Taken where each is one of
    `FIELDS`, once, with a plain value: 4 % of the start's instructions."""
    fields: dict[str, Any] = {}
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if not equals:
            value = next(left, "")
        elif not name.startswith("--"):
            return None
        field = FIELDS.get(name, "")
        if not field or field in fields or not _PLAIN.fullmatch(value):
            return None
        if field == "config":
            fields[field] = Path(value)
        elif field in ("port", "workers"):
            if not _NUMBER.fullmatch(value):
                return None
            fields[field] = int(value)
        else:
            fields[field] = value
    return ServeOptions(**fields)


def start(options: ServeOptions) -> int:
    """Serve until a signal ends it; return the exit code. Raises `typer.Exit` for what is said already."""
    with _without_collecting():
        _load_lightly()
        flags = {
            "server.host": options.host,
            "server.port": options.port,
            "server.workers": options.workers,
            "logging.level": options.log_level,
        }
        text = None
        if options.stand_for_a_file():
            if options.config is not None or os.environ.get("CALLGATE_CONFIG"):
                raise give_up(
                    "--model, --tool, --mcp and --base-url stand in place of a config file: leave out one or the other"
                )
            from callgate.cli.one_line import config_text

            text = config_text(options.models, options.tools, options.mcp_servers, options.base_url)
        loaded = read_config(options.config, flags, text=text)
        if options.create_key:
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
        return run_server(loaded, lambda: load(options.config, flags=flags, text=text))


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
