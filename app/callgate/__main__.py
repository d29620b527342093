"""The entry point of the command line."""

import os
import sys

import typer

from callgate.cli.group import SuggestingCommand, new_app
from callgate.cli.serving import serve


def main() -> None:
    # litellm would fetch its price list from the internet when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    _app()(prog_name="callgate")


def _app() -> typer.Typer:
    """Return the commands; to serve, that one alone, because a tenth of the start went into the others."""
    if sys.argv[1:2] == ["serve"]:
        app = new_app()
        app.command(cls=SuggestingCommand)(serve)
        return app
    from callgate.commands import app

    return app


if __name__ == "__main__":
    main()
