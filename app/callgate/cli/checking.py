"""`callgate check`: what can be said of a config without asking anybody anything."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from callgate.cli.shared import WRONG, ConfigOption, check_exposure, read_config

if TYPE_CHECKING:
    from callgate.config.load import Loaded
    from callgate.tools.registry import RegisteredTool
    from callgate.upstream.resolve import ModelEntry


def check(config: ConfigOption = None) -> None:
    """Read the config, import its tools, compile their schemas, and say what is wrong, without asking anybody anything.

    Exit code 0 when all is well, 1 when a tool cannot be used, 2 when the config cannot.
    """
    loaded = read_config(config)
    check_exposure(loaded)
    from callgate.cli.making import made
    from callgate.cli.own_tools import keep_quiet
    from callgate.runtime.tool_patterns import pattern_problems
    from callgate.tools.own_modules import hiding

    keep_quiet(loaded)
    models, registry = made(loaded)
    tools, sources, broken = registry.tools(), registry.sources(), registry.quarantined()
    for it in broken:
        typer.echo(f"tool {it.name} cannot be used: {it.reason}", err=True)
    names = len({entry.model_name for entry in models})
    counts = f"{names} model(s), {len(tools)} tool(s), {len(sources)} source(s) of tools that were not asked"
    typer.echo(f"{loaded.path or 'the built-in config'}: {'fine' if not broken else 'not fine'}; {counts}")
    for warning in (*registry.clashes(), *hiding(loaded.folder), *_programs_not_there(loaded)):
        typer.echo(f"warning: {warning}", err=True)
    unknown = " among the tools of the config, and its sources were not asked" if sources else ""
    for problem in pattern_problems(loaded.config, registry):
        typer.echo(f"{'note' if sources else 'warning'}: {problem}{unknown}", err=True)
    for note in dict.fromkeys(_losses(models, tools)):
        typer.echo(note)
    if broken:
        raise typer.Exit(WRONG)


def _programs_not_there(loaded: "Loaded") -> Iterator[str]:
    """MCP servers that could not be started: their tools would be missing, and everything else would work."""
    for name, server in loaded.config.mcp_servers.items():
        if server.disabled or server.command is None:
            continue
        from callgate.runtime.builders.policies import in_clear
        from callgate.tools.mcp_process import StdioSpec, why_not_there

        if why := why_not_there(StdioSpec(server.command, server.args, in_clear(server.env), server.cwd)):
            yield f"mcp_servers.{name}: {why}, so that its tools will not be there"


def _losses(models: "Iterable[ModelEntry]", tools: "Iterable[RegisteredTool]") -> Iterator[str]:
    """What is left out of the schemas that models are sent. The gate checks all of it all the same."""
    from callgate.runtime.models import dialect_for
    from callgate.schemas.dialects import portable
    from callgate.tools.tool_filter import ToolFilter, narrowed

    for entry in models:
        dialect = dialect_for(entry)
        for tool in narrowed(tools, [ToolFilter(entry.tools)]):
            for loss in portable(tool.tool.parameters, dialect).losses:
                yield f"note: {dialect} schemas cannot say all of {tool.name}: {loss}"
