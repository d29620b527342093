"""`callgate keys`: making clients' keys."""

from typing import Annotated

import typer

keys = typer.Typer(help="Clients' keys.", no_args_is_help=True)


@keys.command("create")
def create(name: Annotated[str, typer.Argument(help="Whose key it is; appears in logs.")]) -> None:
    """Make a key. It is shown once; the config holds only its hash."""
    from app.auth.keys import mint_key

    secret, digest = mint_key()
    typer.echo(f"key (shown this once): {secret}\n\nfor config.yaml:\n\nkeys:\n  - name: {name}\n    hash: {digest}")
