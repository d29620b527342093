"""`callgate reload`: asks a running server to read its config again."""

from typing import Annotated

import typer

from callgate.cli.server_client import KeyOption, UrlOption, asked
from callgate.cli.shared import JsonOption, printable


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
    answer = asked("POST", "/admin/reload", url, key, {"widen": widen})
    if as_json:
        import json

        typer.echo(json.dumps(answer))
        return
    changed = ", ".join(answer["changed"]) or "nothing"
    typer.echo(printable(f"read again; changed: {changed}"))
    for each in answer.get("widened", ()):
        typer.echo(printable(f"allowed by now: {each}"))
    if answer["needs_restart"]:
        typer.echo(printable(f"only after a restart: {', '.join(answer['needs_restart'])}"))
