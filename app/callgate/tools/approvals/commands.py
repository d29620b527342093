"""`callgate approvals`: lists the waiting calls of a running server, and decides about them."""

import json
import time
from typing import Annotated, Any

import typer

from callgate.cli.server_client import KeyOption, UrlOption, ask_server
from callgate.cli.shared import WRONG, JsonOption
from callgate.telemetry.terminal import in_a_line, say

approvals = typer.Typer(help="Calls that wait for approval on a running server.", no_args_is_help=True)
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
        say(f"  {in_a_line(json.dumps(call['arguments'], ensure_ascii=False))}")
        say(f"  {call['hash']}")


@approvals.command("approve")
def approve(id: Id, url: UrlOption = None, key: KeyOption = None) -> None:
    """Let a call run, with exactly the arguments it waits with."""
    _decide(id, {"decision": "approve"}, url, key)


@approvals.command("deny")
def deny(id: Id, reason: Reason = "", url: UrlOption = None, key: KeyOption = None) -> None:
    """Have a call not run."""
    _decide(id, {"decision": "deny", "reason": reason}, url, key)


def _decide(id: str, decision: dict[str, Any], url: str | None, key: str | None) -> None:
    """Send a decision with the hash of the listed arguments."""
    waiting_calls = {call["id"]: call for call in ask_server("GET", "/v1/approvals", url, key)["data"]}
    if id not in waiting_calls:
        say(f"callgate: no call waits under {id}", err=True)
        raise typer.Exit(WRONG)
    call = ask_server("POST", f"/v1/approvals/{id}", url, key, {**decision, "hash": waiting_calls[id]["hash"]})
    arguments = in_a_line(json.dumps(call["arguments"], ensure_ascii=False))
    say(f"{call['decision']}: {call['tool']} {arguments}")
