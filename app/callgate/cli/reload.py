"""`callgate reload`: asks a running server to read its config again."""

from typing import Annotated

import typer

from callgate.cli.options import JsonOption
from callgate.cli.server_client import KeyOption, UrlOption, ask_server
from callgate.telemetry.terminal import say


def reload(
    widen: Annotated[
        bool,
        typer.Option("--widen", help="Take a config that allows more: fewer keys or approvals, more rights."),
    ] = False,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a running server read its config again.

    A config that allows more than the one in use is refused unless --widen says that it is meant.
    """
    answer = ask_server("POST", "/admin/reload", url, key, {"widen": widen})
    if as_json:
        import json

        say(json.dumps(answer))
        return
    changed = ", ".join(answer["changed"]) or "nothing"
    say(f"read again; changed: {changed}")
    for widening in answer.get("widened", ()):
        say(f"allowed by now: {widening}")
    if answer["needs_restart"]:
        say(f"only after a restart: {', '.join(answer['needs_restart'])}")
