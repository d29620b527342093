"""The command line, put together from its groups in `callgate.cli`."""

import os

import typer

from callgate.cli.approvals import approvals
from callgate.cli.calls import calls
from callgate.cli.chat import chat
from callgate.cli.checking import check
from callgate.cli.doctor import doctor
from callgate.cli.keys import keys
from callgate.cli.ledger import ledger
from callgate.cli.models import models
from callgate.cli.runs import runs
from callgate.cli.serving import health, serve
from callgate.cli.tools import tools
from callgate.cli.usage import usage

app = typer.Typer(
    name="callgate",
    help="An OpenAI-compatible proxy that runs your tools, and never runs half a call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (serve, check, doctor, models, chat, health, calls, usage):
    app.command()(command)
app.add_typer(tools, name="tools")
app.add_typer(approvals, name="approvals")
app.add_typer(keys, name="keys")
app.add_typer(runs, name="runs")
app.add_typer(ledger, name="ledger")


def main() -> None:
    # litellm would fetch its price list from the internet when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    app()


if __name__ == "__main__":
    main()
