"""`callgate approvals`: lists the waiting calls of a running server, and decides about them."""

import json
import time
from typing import Annotated, Any

import typer

from callgate.cli.server_client import KeyOption, UrlOption, asked
from callgate.cli.shared import WRONG, JsonOption, in_a_line

approvals = typer.Typer(help="Calls that wait for approval on a running server.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(help="As `callgate approvals list` shows it.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Sent to the model when the call is denied.")]


@approvals.command("list")
def list_waiting(url: UrlOption = None, key: KeyOption = None, as_json: JsonOption = False) -> None:
    """The calls that wait, the longest first."""
    waiting = asked("GET", "/v1/approvals", url, key)["data"]
    if as_json:
        typer.echo(json.dumps(waiting, indent=2))
        return
    if not waiting:
        typer.echo("nothing waits")
    for call in waiting:
        left = max(0, call["expires"] - int(time.time()))
        typer.echo(f"{call['id']}  {call['tool']} ({call['safety']})  for {call['caller']}, {left} s left")
        typer.echo(f"  {in_a_line(json.dumps(call['arguments'], ensure_ascii=False))}")
        typer.echo(f"  {call['hash']}")


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
    listed = {call["id"]: call for call in asked("GET", "/v1/approvals", url, key)["data"]}
    if id not in listed:
        typer.echo(f"callgate: no call waits under {id}", err=True)
        raise typer.Exit(WRONG)
    call = asked("POST", f"/v1/approvals/{id}", url, key, {**decision, "hash": listed[id]["hash"]})
    arguments = in_a_line(json.dumps(call["arguments"], ensure_ascii=False))
    typer.echo(f"{call['decision']}: {call['tool']} {arguments}")
