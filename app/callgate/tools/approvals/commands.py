"""`callgate approvals`: lists the waiting calls of a running server, decides about them, and answers what they ask."""

import json
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from callgate.cli.options import JsonOption
from callgate.cli.server_client import KeyOption, UrlOption, ask_server
from callgate.cli.shared import WRONG
from callgate.telemetry.terminal import in_a_line, say, shown

approvals = typer.Typer(help="Calls that wait for approval or an answer on a running server.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(help="As `callgate approvals list` shows it.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Sent to the model when the call is denied.")]


@approvals.command("list")
def list_waiting(url: UrlOption = None, key: KeyOption = None, as_json: JsonOption = False) -> None:
    """The calls that wait, the longest first."""
    waiting = ask_server("GET", "/v1/approvals", url, key)["data"]
    if as_json:
        say(json.dumps(waiting, indent=2))
        return
    if not waiting:
        say("nothing waits")
    for call in waiting:
        seconds_left = max(0, call["expires"] - int(time.time()))
        say(f"{call['id']}  {call['tool']} ({call['safety']})  for {call['caller']}, {seconds_left} s left")
        if call["kind"] == "input":
            _tell_question(call)
            continue
        say(f"  {in_a_line(json.dumps(call['arguments'], ensure_ascii=False))}")
        say(f"  {call['hash']}")


@approvals.command("history")
def history(url: UrlOption = None, key: KeyOption = None, as_json: JsonOption = False) -> None:
    """What became of calls that waited: who decided, when, and why. The newest first."""
    settled = ask_server("GET", "/v1/approvals/history", url, key)["data"]
    if as_json:
        say(json.dumps(settled, indent=2))
        return
    if not settled:
        say("no call has waited since the server began")
    for call in settled:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(call["ended"]))
        who = f" by {in_a_line(call['by'])}" if call["by"] else ""
        why = f": {in_a_line(call['reason'])}" if call["reason"] else ""
        say(
            f"{when}  {call['decision']}{who}  {call['tool']} ({call['safety']}) of {call['caller']}, {call['run']}{why}"
        )


@approvals.command("approve")
def approve(id: Id, url: UrlOption = None, key: KeyOption = None) -> None:
    """Let a call run, with exactly the arguments it waits with."""
    _decide(id, {"decision": "approve"}, url, key)


@approvals.command("answer")
def answer(
    id: Id,
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A field of the form; without any each is asked for."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Say that the page was opened, without being asked.")
    ] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Answer what a running tool asks: fill in its form, or say that its page was opened."""
    question = _waiting(id, url, key)
    if question["kind"] != "input":
        say("callgate: this call asks nothing: `approve` or `deny` it", err=True)
        raise typer.Exit(WRONG)
    _tell_question(question)
    decision: dict[str, Any] = {"decision": "answer"}
    if question["mode"] == "form":
        decision["content"] = _content(question["schema"], fields)
    elif not yes and not typer.confirm(shown(f"Did you open it, at {question['host']}?")):
        raise typer.Exit(WRONG)
    _decide(id, decision, url, key)


def _content(form: Mapping[str, Any], fields: list[str] | None) -> dict[str, Any]:
    """Return what is filled into a form: by options, else at the terminal."""
    from callgate.tools.approvals.form_filling import FormFilling, filled
    from callgate.tools.questions import BadAnswer

    if fields is not None or not sys.stdin.isatty():
        pairs = dict(field.partition("=")[::2] for field in fields or ())
        try:
            return filled(form, pairs)
        except BadAnswer as error:
            say(f"callgate: {error.field or 'the form'}: {error}", err=True)
            raise typer.Exit(WRONG) from None
    filling = FormFilling(form)
    while (prompt := filling.prompt()) is not None:
        if problem := filling.feed(input(shown(f"  {prompt}"))):
            say(f"  {problem}", err=True)
    return filling.content


def _tell_question(question: Mapping[str, Any]) -> None:
    from callgate.tools.approvals.form_filling import question_lines

    for line in question_lines(question):
        say(f"  {in_a_line(line)}")
    for name, field in question.get("schema", {}).get("properties", {}).items():
        say(f"    {in_a_line(name)}: {in_a_line(json.dumps(field, ensure_ascii=False))}")


@approvals.command("decline")
def decline(id: Id, url: UrlOption = None, key: KeyOption = None) -> None:
    """Refuse to answer what a running tool asks; it goes on with that."""
    _decide(id, {"decision": "decline"}, url, key)


@approvals.command("deny")
def deny(id: Id, reason: Reason = "", url: UrlOption = None, key: KeyOption = None) -> None:
    """Have a call not run."""
    _decide(id, {"decision": "deny", "reason": reason}, url, key)


def _decide(id: str, decision: dict[str, Any], url: str | None, key: str | None) -> None:
    """Send a decision with the hash of the listed arguments."""
    hash = _waiting(id, url, key)["hash"]
    call = ask_server("POST", f"/v1/approvals/{id}", url, key, {**decision, "hash": hash})
    arguments = in_a_line(json.dumps(call["arguments"], ensure_ascii=False))
    say(f"{call['decision']}: {call['tool']} {arguments}")


def _waiting(id: str, url: str | None, key: str | None) -> dict[str, Any]:
    """Return the waiting call of an id, as listed."""
    for call in ask_server("GET", "/v1/approvals", url, key)["data"]:
        if call["id"] == id:
            return dict(call)
    say(f"callgate: no call waits under {id}", err=True)
    raise typer.Exit(WRONG)
