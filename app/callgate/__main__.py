"""The entry point of the command line."""

import gc
import os
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    # litellm would fetch its price list from the internet when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # pydantic would read the metadata of all installed packages, to find plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _app()(prog_name="callgate")


def _app() -> Callable[..., Any]:
    """Return the commands; to serve, that one alone, because a tenth of the start went into the others."""
    if sys.argv[1:2] == ["serve"]:
        gc.disable()  # nearly all objects of the start stay alive; whoever serves enables it
        from callgate.cli.group import SuggestingCommand, new_app
        from callgate.cli.serving import serve

        app = new_app()
        app.command(cls=SuggestingCommand)(serve)
        return app
    from callgate.commands import app

    return app


if __name__ == "__main__":
    main()
