"""`callgate tools`: lists the tools, and runs one like a model's call."""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.server_client import KeyOption, UrlOption, ask_server
from callgate.cli.shared import WRONG, read_config
from callgate.telemetry.terminal import in_a_line, say, shown
from callgate.untrusted.doors import text_written_here
from callgate.untrusted.readers import read_leniently

if TYPE_CHECKING:
    from callgate.calls.outcome import Failed
    from callgate.calls.states import ReadyCall
    from callgate.config.load import Loaded
    from callgate.conversation.events import GuardrailJudged
    from callgate.conversation.ports import ProgressReport, Report, Toolbox
    from callgate.tools.executor import Tool
    from callgate.tools.questions import PersonsAnswer, Question

NOT_WHOLE = 3
"""The exit code of a broken call."""

tools = typer.Typer(help="The tools of the config.", no_args_is_help=True)


@tools.command("list")
def list_tools(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """All tools, what each costs a prompt, and what cannot be used and why."""
    loaded = read_config(config)
    listing = asyncio.run(_listing(loaded))
    say(json.dumps(listing, indent=2) if as_json else "\n".join(_lines(listing)))


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
    if code == NOT_WHOLE:
        text = _for_people(answer["text"])
    else:
        text = answer["text"]
    say(json.dumps(answer, indent=2) if as_json else text, err=code != 0 and not as_json)
    raise typer.Exit(code)


@tools.command("accept")
def accept_tools(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[SERVER/TOOL]...", help="Which; all that are held if left out.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept without being asked for each.")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Show what is different about tools that a running server holds back, and accept them."""
    held_tools = ask_server("GET", "/admin/held-tools", url, key)["data"]
    chosen_tools = [tool for tool in held_tools if not names or f"{tool['server']}/{tool['tool']}" in names]
    unknown = sorted(set(names or ()) - {f"{tool['server']}/{tool['tool']}" for tool in held_tools})
    for name in unknown:
        say(f"callgate: {name} is not held", err=True)
    if not chosen_tools and not unknown:
        say("nothing is held")
    for tool in chosen_tools:
        say(f"{in_a_line(tool['server'])}/{in_a_line(tool['tool'])} is {tool['why']}:")
        for line in tool["difference"]:
            say(f"  {in_a_line(line)}")
        if yes or typer.confirm("Accept it?"):
            body = {name: tool[name] for name in ("server", "tool", "digest")}
            ask_server("POST", "/admin/held-tools", url, key, body)
            say("accepted: it is on offer again")
    if unknown:
        raise typer.Exit(WRONG)


def _for_people(text: str) -> str:
    """Rewrite what a model is told of a broken call."""
    error = read_leniently(text_written_here(text))["error"]
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


async def _listing(loaded: "Loaded") -> dict[str, Any]:
    from callgate.cli.own_tools import OPEN_SECONDS, keep_quiet, opened_tools
    from callgate.tools.listing import clash_facts, operators_facts, quarantined_facts, read_more_facts, source_facts

    keep_quiet(loaded)
    async with opened_tools(loaded, OPEN_SECONDS) as registry:
        tools = [operators_facts(tool) for tool in registry.tools()]
        if tools:
            tools.append(
                {**read_more_facts(tool.name for tool in registry.tools()), "from": "callgate", "timeout": None}
            )
        return {
            "tools": tools,
            "quarantined": [quarantined_facts(broken) for broken in registry.quarantined()],
            "clashes": [clash_facts(clash) for clash in registry.clashes()],
            "sources": [source_facts(status) for status in (*registry.sources(), *registry.services())],
        }


def _lines(listing: dict[str, Any]) -> list[str]:
    rows = [("NAME", "KIND", "SOURCE", "STATE", "SAFETY", "TOKENS")]
    for tool in listing["tools"]:
        if tool["require_approval"]:
            state = "waits for approval"
        else:
            state = "ready"
        row = (tool["name"], tool["kind"], tool["source"], state, tool["safety"], str(tool["prompt_tokens"]))
        rows.append(row)
    rows += [
        (quarantined["name"], "", quarantined["source"], quarantined["state"], "", "")
        for quarantined in listing["quarantined"]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total = sum(tool["prompt_tokens"] for tool in listing["tools"])
    count = len(listing["tools"])
    lines.append(f"{count} tool{'' if count == 1 else 's'}, about {total} tokens of every prompt that offers them all")
    for source in listing["sources"]:
        if source["open_ms"] is None:
            took = ""
        else:
            took = f", opened in {source['open_ms']:g} ms"
        why = f": {source['error']}" if source["error"] else ""
        lines.append(f"source {source['name']} ({source['kind']}): {source['state']}{took}{why}")
    for clash in listing["clashes"]:
        outcomes = ", ".join(f"{origin} is {name or 'not there now'}" for origin, name in clash["tools"].items())
        lines.append(f"name clash {clash['name']}: {outcomes}")
    lines += [
        f"{quarantined['state']} {quarantined['name']} ({quarantined['source']}): {quarantined['reason']}"
        for quarantined in listing["quarantined"]
    ]
    return lines


async def _called(loaded: "Loaded", name: str, arguments: str, *, yes: bool) -> tuple[int, dict[str, Any]]:
    from callgate.calls.outcome import Failed
    from callgate.calls.states import BrokenCall
    from callgate.cli.own_guard import opened_guard
    from callgate.cli.own_tools import OPEN_SECONDS, keep_quiet, opened_tools
    from callgate.conversation.feedback import explain
    from callgate.conversation.ports import begin_at_once
    from callgate.tools.results import described
    from callgate.tools.toolbox import RequestToolbox, ToolSet

    keep_quiet(loaded, "warning")  # includes the traceback of a tool that raises
    async with (
        opened_tools(loaded, OPEN_SECONDS, name) as registry,
        opened_guard(loaded, registry, _say_judged) as guard,
    ):
        own_toolbox = RequestToolbox(
            server_tools=ToolSet(registry.tools()),
            run_id="run_by_hand",
            limits=registry.limits,
            approve=_approving(yes=yes),
            put=_put_at_terminal if sys.stdin.isatty() else None,
        )
        if registry.find(name) is None and (
            same_address := [tool for tool in registry.tools() if tool.address == name]
        ):
            name = same_address[0].name
        # Check the call like one of a model.
        from callgate.conversation.events import CallWritten
        from callgate.conversation.turn import TurnBuilder

        building = TurnBuilder(offer={tool.name: tool.offered for tool in registry.tools()}, ids=lambda: "call_by_hand")
        building.feed([CallWritten(name, arguments)])
        turn = building.finish()
        toolbox: Toolbox = own_toolbox
        if guard is not None:
            toolbox = guard.watched(own_toolbox)
            turn = await guard.judge.settled(turn, toolbox.offer)
        call = turn.calls[0]
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
        arguments = in_a_line(json.dumps(call.arguments, ensure_ascii=False))
        question = shown(f"{tool.name} {arguments} needs approval. Run it?")
        if yes or (sys.stdin.isatty() and await asyncio.to_thread(typer.confirm, question, err=True)):
            return None
        return Failed("Not run: this tool needs approval; --yes gives it.", FailureKind.REFUSED)

    return approve


async def _put_at_terminal(
    question: "Question", tool: "Tool", call: "ReadyCall", report: "Report", key: str, number: int
) -> "PersonsAnswer":
    """Put a question of the running tool to the user of the command."""
    from callgate.tools.approvals.form_filling import FormFilling, question_lines
    from callgate.tools.questions import PersonsAnswer

    for line in question_lines({**question.facts(), "tool": tool.name}):
        say(in_a_line(line), err=True)
    is_form = question.form is not None
    if not await asyncio.to_thread(typer.confirm, "Answer?" if is_form else "Did you open it?", err=True):
        return PersonsAnswer("decline")
    if question.form is None:
        return PersonsAnswer("accept")
    filling = FormFilling(question.form)
    while (prompt := filling.prompt()) is not None:
        if problem := filling.feed(await asyncio.to_thread(input, shown(f"  {prompt}"))):
            say(f"  {problem}", err=True)
    return PersonsAnswer("accept", filling.content)


async def _say_judged(event: "GuardrailJudged") -> None:
    if event.verdict != "passed":
        say(f"guardrail {event.hook} at {event.point}: {event.verdict}", err=True)


async def _report(progress: "ProgressReport") -> None:
    line = progress.message
    if progress.fraction is not None:
        line = f"{progress.fraction:4.0%} {line}"
    say(line, err=True)
