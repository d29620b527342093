"""The command line. Each command imports what it needs when it runs, so that a health check costs no server."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from app.config.load import Loaded

app = typer.Typer(
    name="callgate",
    help="An OpenAI-compatible proxy that runs your tools, and never runs half a call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="Clients' keys.", no_args_is_help=True)
app.add_typer(keys, name="keys")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The config file. Default: $CALLGATE_CONFIG, ./config.yaml, or the built-in demo."
    ),
]
DEFAULT_PORT = 8000
HEALTH_SECONDS = 5.0


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 lets the system choose.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve until told to stop."""
    loaded = _load(config, {"server.host": host, "server.port": port, "logging.level": log_level})
    _check_exposure(loaded)
    from app import server

    raise typer.Exit(server.serve(loaded))


@app.command()
def check(config: ConfigOption = None) -> None:
    """Read the config and say what is wrong with it, without asking anybody anything."""
    loaded = _load(config, {})
    _check_exposure(loaded)
    typer.echo(f"{loaded.path or 'the built-in config'}: fine")


@app.command()
def health(
    url: Annotated[
        str | None, typer.Option(help="Where the server is. Default: this machine, $CALLGATE_PORT or 8000.")
    ] = None,
) -> None:
    """Ask a running server whether it is alive. Exit code 0 if it is; for container health checks."""
    import urllib.error
    import urllib.request

    base = url or f"http://127.0.0.1:{os.environ.get('CALLGATE_PORT', DEFAULT_PORT)}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base.rstrip('/')}/health/live", timeout=HEALTH_SECONDS) as answer:
            typer.echo(f"{base}: {answer.status}")
    except (OSError, ValueError, urllib.error.URLError) as error:
        typer.echo(f"{base}: {error}", err=True)
        raise typer.Exit(1) from None


@keys.command("create")
def keys_create(name: Annotated[str, typer.Argument(help="Whose key it is; appears in logs.")]) -> None:
    """Make a key. It is shown once; the config holds only its hash."""
    from app.auth.keys import mint_key

    secret, digest = mint_key()
    typer.echo(f"key (shown this once): {secret}\n\nfor config.yaml:\n\nkeys:\n  - name: {name}\n    hash: {digest}")


def _load(path: Path | None, flags: dict[str, Any]) -> "Loaded":
    from app.config.load import load
    from app.config.problems import ConfigError

    try:
        return load(path, flags=flags)
    except (ConfigError, OSError) as error:
        typer.echo(f"callgate: {error}", err=True)
        raise typer.Exit(2) from None


def _check_exposure(loaded: "Loaded") -> None:
    from app.auth.keys import check_exposure

    config = loaded.config
    if mistake := check_exposure(config.server.host, config.auth, len(config.keys)):
        typer.echo(f"callgate: {mistake}", err=True)
        raise typer.Exit(2)


def main() -> None:
    # litellm would fetch its price list from the internet when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    app()


if __name__ == "__main__":
    main()
