"""The command line, put together from its groups in `app.cli`."""

import os

import typer

from app.cli.approvals import approvals
from app.cli.chat import chat
from app.cli.checking import check
from app.cli.doctor import doctor
from app.cli.keys import keys
from app.cli.models import models
from app.cli.runs import runs
from app.cli.serving import health, serve
from app.cli.tools import tools

app = typer.Typer(
    name="callgate",
    help="An OpenAI-compatible proxy that runs your tools, and never runs half a call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (serve, check, doctor, models, chat, health, runs):
    app.command()(command)
app.add_typer(tools, name="tools")
app.add_typer(approvals, name="approvals")
app.add_typer(keys, name="keys")


def main() -> None:
    # litellm would fetch its price list from the internet when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    app()


if __name__ == "__main__":
    main()
