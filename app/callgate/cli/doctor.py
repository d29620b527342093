"""`callgate doctor`: whether what the config names is really there. It asks, so it needs the network it will be used in."""

import asyncio
import errno
import json
import socket
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import typer

from callgate.cli.shared import WRONG, ConfigOption, JsonOption, check_exposure, read_config

if TYPE_CHECKING:
    from callgate.config.load import Loaded
    from callgate.config.schema import Config
    from callgate.http.client import HttpClient
    from callgate.tools.registry import Registry
    from callgate.upstream.resolve import ModelEntry

Check = dict[str, Any]
MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
SIDE_BY_SIDE = 8
"""Models that are looked at at the same time."""


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Ask everything the config names whether it is there: the port, each model's provider and key, each tool server.

    Costs at most a list of models or one token for each model. Exit code 0 when nothing failed, 1 when something did.
    """
    loaded = read_config(config)
    check_exposure(loaded)
    checks = asyncio.run(_examined(loaded))
    failed = any(check["status"] == "fail" for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "checks": checks}, indent=2))
    else:
        for check in checks:
            took = "" if check.get("ms") is None else f" ({check['ms']:g} ms)"
            typer.echo(f"{MARKS[check['status']]}  {check['what']}: {check['detail']}{took}")
    if failed:
        raise typer.Exit(WRONG)


async def _examined(loaded: "Loaded") -> list[Check]:
    from callgate.cli.models import entries_of
    from callgate.cli.own_tools import keep_quiet, opened_tools
    from callgate.cli.tools import OPEN_SECONDS
    from callgate.runtime.builders.models import model_client
    from callgate.upstream import litellm_model

    keep_quiet(loaded)
    entries = entries_of(loaded)
    checks = [_check("config", "ok", str(loaded.path or "built in")), await _port(loaded.config)]
    client = model_client()
    places = asyncio.Semaphore(SIDE_BY_SIDE)
    try:
        checks += await asyncio.gather(*(_model(entry, client, places) for entry in entries))
    finally:
        await client.close()
        await litellm_model.close()
    async with opened_tools(loaded, OPEN_SECONDS) as registry:
        checks += _tools(loaded.config, registry)
    return checks


def _check(what: str, status: str, detail: str, seconds: float | None = None, **more: Any) -> Check:
    return {"what": what, "status": status, "detail": detail, "ms": seconds and round(seconds * 1000, 1), **more}


async def _port(config: "Config") -> Check:
    host, port = config.server.host, config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    what = f"port {port}"
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and await _is_callgate(host, port):
            return _check(what, "warn", f"a server is running on {host} already, and it is alive")
        return _check(what, "fail", f"cannot listen on {host}: {error.strerror}")
    return _check(what, "ok", f"free on {host}")


async def _is_callgate(host: str, port: int) -> bool:
    from callgate.http.client import HttpClient
    from callgate.http.interface import Deadlines, TransportError

    client = HttpClient()
    try:
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/health/live"
        async with client.get(url, {}, Deadlines(connect=2, first_byte=2, idle=2, total=2)) as answer:
            return answer.status == HTTPStatus.OK
    except TransportError:
        return False
    finally:
        await client.close()


async def _model(entry: "ModelEntry", client: "HttpClient", places: asyncio.Semaphore) -> Check:
    from callgate.cli.models import row_of
    from callgate.upstream.inspection import look

    async with places:
        row = await row_of(entry)
        found = await look(entry, client)
    lane = f"{row['lane']} lane" + (f" (translated: {row['why_litellm']})" if row["why_litellm"] else "")
    how = f"{lane}, tool calling {row['tool_calling']}" + (f", {row['host']}" if row["host"] else "")
    return _check(f"model {entry.model_name}", found.verdict, f"{found.detail}; {how}", found.seconds, **row)


def _tools(config: "Config", registry: "Registry") -> Iterator[Check]:
    from callgate.runtime.tool_patterns import pattern_problems

    for status in registry.sources():
        verdict = "ok" if status.state == "ready" else "fail"
        yield _check(
            f"source {status.name}", verdict, status.error or str(status.state), status.seconds, kind=status.kind
        )
    for broken in registry.quarantined():
        yield _check(f"tool {broken.name}", "fail", f"cannot be used: {broken.reason}")
    for clash in registry.clashes():
        yield _check(f"name {clash.claimed}", "warn", str(clash))
    for problem in pattern_problems(config, registry):
        yield _check("pattern", "warn", str(problem))
    tools = registry.tools()
    yield _check("tools", "ok", f"{len(tools)} can be used")
