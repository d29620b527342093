"""The group of all commands: what `callgate` alone does, and hints at what was meant."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from callgate import __version__
from callgate.telemetry.terminal import say


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


def new_app() -> typer.Typer:
    """Return the group, without commands."""
    app = typer.Typer(
        cls=_Commands,
        name="callgate",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(callgate)
    return app


def end_with(error: BaseException) -> None:
    """End the process as it ends where a command raises an error."""
    app = new_app()

    @app.command()
    def fail() -> None:
        raise error

    app(["fail"], prog_name="callgate")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        say(f"callgate {__version__}")
        raise typer.Exit


def callgate(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An OpenAI-compatible proxy that runs your tools, and never runs half a call."""


class SuggestingCommand(TyperCommand):
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
