"""`callgate check`: checks a config without any network access."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from callgate.cli.shared import WRONG, ConfigOption, check_exposure, read_config

if TYPE_CHECKING:
    from callgate.cli.making import Mistake
    from callgate.config.load import Loaded
    from callgate.tools.registry import RegisteredTool
    from callgate.upstream.resolve import ModelConfig


def check(config: ConfigOption = None) -> None:
    """Report all that is wrong with the config, without asking a provider or a tool server.

    Reads it, imports its tools, and compiles their schemas.

    Exit code 0 when all is well, 1 when a tool cannot be used, 2 when the config cannot.
    """
    loaded = read_config(config)
    check_exposure(loaded)
    from callgate.cli.making import made
    from callgate.cli.own_tools import keep_quiet
    from callgate.cli.warnings import warnings_of
    from callgate.runtime.tool_patterns import pattern_problems
    from callgate.tools.own_modules import hiding

    keep_quiet(loaded)
    models, registry = made(loaded)
    tools, sources, broken = registry.tools(), registry.sources(), registry.quarantined()
    if broken:
        typer.echo(loaded.complaint(*(_unusable(loaded, it.name, it.reason) for it in broken)), err=True)
    counts = [_counted(len({entry.model_name for entry in models}), "model"), _counted(len(tools), "tool")]
    if sources:
        counts.append(f"{_counted(len(sources), 'source')} of tools, not asked here (`callgate doctor` asks)")
    verdict = "fine" if not broken else "not fine"
    typer.echo(f"{loaded.path or 'the built-in config'}: {verdict}; {', '.join(counts)}")
    for warning in (*registry.clashes(), *hiding(loaded.folder), *_programs_not_there(loaded)):
        typer.echo(f"warning: {warning}", err=True)
    for warning in warnings_of(loaded, registry):
        typer.echo(f"warning: {warning}", err=True)
    unknown = " among the tools of the config, and its sources were not asked" if sources else ""
    for problem in pattern_problems(loaded.config, registry):
        [placed] = loaded.complaint((problem.place, "")).problems
        typer.echo(f"{'note' if sources else 'warning'}: {placed.spot}: {problem}{unknown}", err=True)
    if unknown_safety := [tool.name for tool in tools if not tool.tool.policy.safety_is_given]:
        typer.echo(f"note: {', '.join(unknown_safety)}: {_UNKNOWN_SAFETY}")
    for note in dict.fromkeys(_losses(models, tools)):
        typer.echo(note)
    if broken:
        raise typer.Exit(WRONG)


_UNKNOWN_SAFETY = (
    "no `safety` is given, so that they count as tools that may change something: their calls of one turn run one after "
    "the other, and are never retried (`safety: read_only` says that a tool changes nothing)"
)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _unusable(loaded: "Loaded", name: str, reason: str) -> "Mistake":
    index = next((at for at, entry in enumerate(loaded.config.tools) if entry.name == name), None)
    path = ("tools",) if index is None else ("tools", index, "parameters")
    return path, f"tool {name} cannot be used: {reason}"


def _programs_not_there(loaded: "Loaded") -> Iterator[str]:
    """Yield warnings for MCP servers that could not be started, whose tools would be missing."""
    for name, server in loaded.config.mcp_servers.items():
        if server.disabled or server.command is None:
            continue
        from callgate.runtime.builders.policies import in_clear
        from callgate.tools.mcp_process import StdioSpec, why_not_there

        if why := why_not_there(StdioSpec(server.command, server.args, in_clear(server.env), server.cwd)):
            yield f"mcp_servers.{name}: {why}, so that its tools will not be there"


def _losses(models: "Iterable[ModelConfig]", tools: "Iterable[RegisteredTool]") -> Iterator[str]:
    """Yield notes on keywords that are left out of the schemas for models, and still checked by the gate."""
    from callgate.runtime.models import dialect_for
    from callgate.schemas.dialects import portable
    from callgate.tools.tool_filter import ToolFilter, narrowed

    for entry in models:
        dialect = dialect_for(entry)
        for tool in narrowed(tools, [ToolFilter(entry.tools)]):
            for loss in portable(tool.tool.parameters, dialect).losses:
                yield f"note: {dialect} schemas cannot say all of {tool.name}: {loss}"
