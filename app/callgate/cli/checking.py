"""`callgate check`: checks a config without any network access."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.shared import WRONG, check_exposure, check_stored_files, read_config
from callgate.telemetry.terminal import say

if TYPE_CHECKING:
    from callgate.cli.making import Mistake
    from callgate.config.load import Loaded
    from callgate.models.resolve import ModelConfig
    from callgate.tools.registry import RegisteredTool, Registry


def check(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Report all that is wrong with the config, without asking a provider or a tool server, and who may do what by it.

    Reads it, imports its tools, and compiles their schemas.

    Exit code 0 when all is well, 1 when a tool cannot be used, 2 when the config cannot.
    """
    loaded = read_config(config)
    check_exposure(loaded)
    from callgate.cli.making import made
    from callgate.cli.own_tools import keep_quiet
    from callgate.cli.progress import progress
    from callgate.cli.rights_table import callers_of, lines_of
    from callgate.cli.warnings import warnings_of
    from callgate.runtime.search_savings import search_savings
    from callgate.tools.kinds.python.own_modules import hiding

    keep_quiet(loaded)
    with progress(f"reading {_counted(len(loaded.config.model_list), 'model')} and the tools"):
        models, registry = made(loaded)
    check_stored_files(loaded)
    tools = registry.tools()
    sources = registry.sources()
    broken = registry.quarantined()
    if broken:
        say(loaded.complaint(*(_unusable(loaded, tool.name, tool.reason) for tool in broken)), err=True)
    counts = [_counted(len({entry.model_name for entry in models}), "model"), _counted(len(tools), "tool")]
    if sources:
        counts.append(f"{_counted(len(sources), 'source')} of tools, not asked here (`callgate doctor` asks)")
    if broken:
        verdict = "not fine"
    else:
        verdict = "fine"
    say(f"{loaded.path or 'the built-in config'}: {verdict}; {', '.join(counts)}", err=as_json)
    for warning in (*registry.clashes(), *hiding(loaded.folder()), *_programs_not_there(loaded)):
        say(f"warning: {warning}", err=True)
    for warning in warnings_of(loaded, registry):
        say(f"warning: {warning}", err=True)
    for line in _unmatched_patterns(loaded, registry):
        say(line, err=True)
    if unknown_safety := [tool.name for tool in tools if not tool.tool.policy.safety_is_given]:
        say(f"note: {', '.join(unknown_safety)}: {_UNKNOWN_SAFETY}", err=as_json)
    with progress("writing the schemas of all tools for all models"):
        notes = list(dict.fromkeys(_losses(models, tools)))
    for note in notes:
        say(note, err=as_json)
    for line in _guardrails(loaded):
        say(line, err=as_json)
    for saving in search_savings(loaded.config, registry):
        say(f"note: {saving}", err=as_json)
    callers = callers_of(loaded.config, registry)
    say(json.dumps({"ok": not broken, "callers": callers}, indent=2) if as_json else "\n".join(lines_of(callers)))
    if broken:
        raise typer.Exit(WRONG)


def _guardrails(loaded: "Loaded") -> Iterator[str]:
    if loaded.config.guardrails:
        from callgate.guardrails.inspection import lines_of_hooks

        yield from lines_of_hooks(loaded.config)


def _unmatched_patterns(loaded: "Loaded", registry: "Registry") -> Iterator[str]:
    from callgate.runtime.tool_patterns import pattern_problems

    if registry.sources():
        severity = "note"
        unknown = " among the tools of the config, and its sources were not asked"
    else:
        severity = "warning"
        unknown = ""
    for problem in pattern_problems(loaded.config, registry):
        [placed] = loaded.complaint((problem.place, "")).problems
        yield f"{severity}: {placed.spot}: {problem}{unknown}"


_UNKNOWN_SAFETY = (
    "no `safety` is given, so that they count as tools that may change something: their calls of one turn run one after "
    "the other, and are never retried (`safety: read_only` says that a tool changes nothing)"
)


def _counted(count: int, what: str) -> str:
    if count == 1:
        return f"1 {what}"
    return f"{count} {what}s"


def _unusable(loaded: "Loaded", name: str, reason: str) -> "Mistake":
    index = next((at for at, entry in enumerate(loaded.config.tools) if entry.name == name), None)
    message = f"tool {name} cannot be used: {reason}"
    if index is None:
        return ("tools",), message
    return ("tools", index, "parameters"), message


def _programs_not_there(loaded: "Loaded") -> Iterator[str]:
    """Yield warnings for MCP servers that could not be started, whose tools would be missing."""
    for name, server in loaded.config.mcp_servers.items():
        if server.disabled or server.command is None:
            continue
        from callgate.tools.kinds.mcp.process import StdioSpec, why_not_there
        from callgate.tools.policies import in_clear

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
