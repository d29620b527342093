"""The entry point of the command line."""

import gc
import os
import sys
from typing import Final


def main() -> None:
    # litellm would fetch its price list from the internet when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # pydantic would read the metadata of all installed packages, to find plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if sys.argv[1:2] == ["serve"]:
        gc.disable()  # nearly all objects of the start stay alive; whoever serves enables it
        _serve()
    else:
        from callgate.commands import app

        app(prog_name="callgate")


def _serve() -> None:
    """Serve, without the other commands, in which a tenth of the start went, and without typer where the options are plain."""
    from callgate.cli.starting import options_fast, start

    options = None
    if COMPLETION not in os.environ:
        options = options_fast(sys.argv[2:])
    if options is None:
        _serve_by_typer()
        return
    try:
        code = start(options)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - typer knows those that are no faults
        from callgate.cli.group import end_with

        end_with(error)
    else:
        sys.exit(code)


COMPLETION: Final = "_CALLGATE_COMPLETE"
"""The variable by which a shell asks typer what may follow."""


def _serve_by_typer() -> None:
    from callgate.cli.group import SuggestingCommand, new_app
    from callgate.cli.serving import serve

    app = new_app()
    app.command(cls=SuggestingCommand)(serve)
    app(prog_name="callgate")


if __name__ == "__main__":
    main()
