"""The entry point of the command line: registers the groups of commands in `callgate.cli`."""

import os
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from callgate import __version__
from callgate.access.commands import keys
from callgate.cli.chat import chat
from callgate.cli.checking import check
from callgate.cli.doctor import doctor
from callgate.cli.init import init
from callgate.cli.reload import reload
from callgate.cli.serving import health, serve
from callgate.fleet.commands import pools, worker
from callgate.mcp_server.commands import add_serving
from callgate.models.commands import models
from callgate.recorder.commands.runs import runs
from callgate.recorder.commands.usage import usage
from callgate.state.commands.calls import calls
from callgate.state.commands.ledger import ledger
from callgate.telemetry.terminal import say
from callgate.tools.approvals.commands import approvals
from callgate.tools.commands import tools
from callgate.tools.kinds.mcp.commands import mcp


class _Commands(TyperGroup):
    """The commands, with hints at what stands elsewhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "option_name", "") in ("--config", "-c", "--url", "--key"):
                message = str(getattr(error, "message", ""))
                error.message = f"{message.rstrip('.')}; it stands behind the command: callgate check --config FILE"  # type: ignore[attr-defined]
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            hint = ELSEWHERE.get(args[0])
            if hint is not None:
                error.message = f"No command is called '{args[0]}': {hint}"  # type: ignore[attr-defined]
            raise


ELSEWHERE = {
    "version": "callgate --version",
    "run": "callgate serve",
    "start": "callgate serve",
    "validate": "callgate check",
    "test": "callgate check, and callgate doctor with the network",
    "status": "callgate health",
    "logs": "callgate serve writes them to standard error; callgate runs list shows requests",
}
"""What other programs call a command, and what it is here."""

app = typer.Typer(
    cls=_Commands,
    name="callgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        say(f"callgate {__version__}")
        raise typer.Exit


@app.callback()
def callgate(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An OpenAI-compatible proxy that runs your tools, and never runs half a call."""


class _Command(TyperCommand):
    """A command that suggests `--config` where a file was given as an argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        files = [argument for argument in args if argument.endswith((".yaml", ".yml", ".json"))]
        wants_list = "list" in args
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # its class is in another module from one typer to the next
            message = str(getattr(error, "message", ""))
            if files and "unexpected extra argument" in message:
                error.message = f"{message}; did you mean --config {files[0]}?"  # type: ignore[attr-defined]
            elif "unexpected extra argument" in message and wants_list:
                error.message = f"{message}; `{ctx.command_path}` alone lists them"  # type: ignore[attr-defined]
            raise


for command in (init, serve, check, doctor, models, chat, health, reload, calls, usage, worker, pools):
    app.command(cls=_Command)(command)
app.add_typer(tools, name="tools")
add_serving(mcp)
app.add_typer(mcp, name="mcp")
app.add_typer(approvals, name="approvals")
app.add_typer(keys, name="keys")
app.add_typer(runs, name="runs")
app.add_typer(ledger, name="ledger")


def main() -> None:
    # litellm would fetch its price list from the internet when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    app(prog_name="callgate")


if __name__ == "__main__":
    main()
