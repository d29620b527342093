"""`callgate tools`: lists the tools, and runs one like a model's call."""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callgate.cli.shared import WRONG, ConfigOption, JsonOption, read_config

if TYPE_CHECKING:
    from callgate.calls.outcome import Failed
    from callgate.calls.states import ReadyCall
    from callgate.config.load import Loaded
    from callgate.conversation.ports import Report
    from callgate.tools.executor import Tool

NOT_WHOLE = 3
"""The exit code of a broken call."""
OPEN_SECONDS = 30.0
"""The timeout for tool servers to open; a server by npx may have to be downloaded."""

tools = typer.Typer(help="The tools of the config.", no_args_is_help=True)


@tools.command("list")
def list_tools(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """All tools, what each costs a prompt, and what cannot be used and why."""
    loaded = read_config(config)
    found = asyncio.run(_found(loaded))
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


@tools.command("call")
def call_tool(
    name: Annotated[str, typer.Argument(help="What a model would call it.")],
    arguments: Annotated[
        str, typer.Argument(help="The arguments, as a model would write them: one JSON object.")
    ] = "{}",
    config: ConfigOption = None,
    as_json: JsonOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve the call, if the tool needs approval.")] = False,
) -> None:
    """Run one tool through the same gate and policy as a model's call.

    Exit code 0 when it answered, 1 when it failed, 3 when the call was not whole.
    """
    loaded = read_config(config)
    code, answer = asyncio.run(_called(loaded, name, arguments, yes=yes))
    text = _for_people(answer["text"]) if code == NOT_WHOLE else answer["text"]
    typer.echo(json.dumps(answer, indent=2) if as_json else text, err=code != 0 and not as_json)
    raise typer.Exit(code)


def _for_people(text: str) -> str:
    """Rewrite what a model is told of a broken call."""
    error = json.loads(text)["error"]
    lines = [f"not run: {error['code']}"]
    if error.get("expected") or error.get("got"):
        place = error.get("pointer") or "the arguments"
        lines.append(f"  at {place}: expected {error.get('expected') or '?'}, got {error.get('got') or 'nothing'}")
    lines += [f"  {error[name]}" for name in ("note",) if error.get(name)]
    if error.get("did_you_mean"):
        lines.append(f"  did you mean {' or '.join(error['did_you_mean'])}?")
    if len(lines) == 1:
        lines.append(f"  {error['message']}")
    return "\n".join(lines)


async def _found(loaded: "Loaded") -> dict[str, Any]:
    from callgate.cli.own_tools import keep_quiet, opened_tools
    from callgate.tools.listing import clash_facts, operators_facts, quarantined_facts, source_facts

    keep_quiet(loaded)
    async with opened_tools(loaded, OPEN_SECONDS) as registry:
        return {
            "tools": [operators_facts(tool) for tool in registry.tools()],
            "quarantined": [quarantined_facts(broken) for broken in registry.quarantined()],
            "clashes": [clash_facts(clash) for clash in registry.clashes()],
            "sources": [source_facts(status) for status in registry.sources()],
        }


def _lines(found: dict[str, Any]) -> list[str]:
    rows = [("NAME", "KIND", "SOURCE", "STATE", "SAFETY", "TOKENS")]
    for tool in found["tools"]:
        state = "waits for approval" if tool["require_approval"] else "ready"
        row = (tool["name"], tool["kind"], tool["source"], state, tool["safety"], str(tool["prompt_tokens"]))
        rows.append(row)
    rows += [(it["name"], "", it["source"], "quarantined", "", "") for it in found["quarantined"]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total = sum(tool["prompt_tokens"] for tool in found["tools"])
    count = len(found["tools"])
    lines.append(f"{count} tool{'' if count == 1 else 's'}, about {total} tokens of every prompt that offers them all")
    for source in found["sources"]:
        took = "" if source["open_ms"] is None else f", opened in {source['open_ms']:g} ms"
        why = f": {source['error']}" if source["error"] else ""
        lines.append(f"source {source['name']} ({source['kind']}): {source['state']}{took}{why}")
    for clash in found["clashes"]:
        named = ", ".join(f"{origin} is {name or 'not there now'}" for origin, name in clash["tools"].items())
        lines.append(f"name clash {clash['name']}: {named}")
    lines += [f"quarantined {it['name']} ({it['source']}): {it['reason']}" for it in found["quarantined"]]
    return lines


async def _called(loaded: "Loaded", name: str, arguments: str, *, yes: bool) -> tuple[int, dict[str, Any]]:
    from callgate.calls.outcome import Failed
    from callgate.calls.states import BrokenCall
    from callgate.cli.own_tools import keep_quiet, opened_tools
    from callgate.conversation.feedback import explain
    from callgate.conversation.ports import begin_at_once
    from callgate.tools.results import described
    from callgate.tools.toolbox import RequestToolbox

    keep_quiet(loaded, "warning")  # includes the traceback of a tool that raises
    async with opened_tools(loaded, OPEN_SECONDS, name) as registry:
        toolbox = RequestToolbox(
            registry.tools(), run_id="run_by_hand", limits=registry.limits, approve=_approving(yes=yes)
        )
        if registry.find(name) is None and (named := [each for each in registry.tools() if each.address == name]):
            name = named[0].name
        # Check the call like one of a model.
        from callgate.conversation.events import CallWritten
        from callgate.conversation.turn import TurnBuilder

        building = TurnBuilder({tool.name: tool.offered for tool in registry.tools()}, lambda: "call_by_hand")
        building.feed([CallWritten(name, arguments)])
        call = building.finish().calls[0]
        if isinstance(call, BrokenCall):
            return NOT_WHOLE, {"outcome": "not_run", "flaw": str(call.flaw), "text": explain(call, toolbox.offer)}
        toolbox.plan([call])
        outcome = await toolbox.run(call, _report, begin_at_once)
        if isinstance(outcome, Failed):
            return WRONG, {"outcome": str(outcome.kind), "text": outcome.text}
        images = [described(image.mime_type, len(image.data) * 3 // 4) for image in outcome.images]
        text = "\n".join(part for part in (outcome.text, *images) if part)
        return 0, {"outcome": "returned", "text": text, "cut_bytes": outcome.cut_bytes}


def _approving(*, yes: bool) -> Any:
    """Return a function that asks the user of the command for approval."""
    from callgate.calls.outcome import Failed, FailureKind

    async def approve(tool: "Tool", call: "ReadyCall", report: "Report", key: str) -> "Failed | None":
        question = f"{tool.name} {json.dumps(call.arguments, ensure_ascii=False)} needs approval. Run it?"
        if yes or (sys.stdin.isatty() and await asyncio.to_thread(typer.confirm, question, err=True)):
            return None
        return Failed("Not run: this tool needs approval; --yes gives it.", FailureKind.REFUSED)

    return approve


async def _report(message: str, fraction: float | None = None) -> None:
    typer.echo(message if fraction is None else f"{fraction:4.0%} {message}", err=True)
