"""`callgate doctor`: checks that the providers, servers and tools of a config can be reached, over the network."""

import asyncio
import errno
import json
import shlex
import socket
import time
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.shared import WRONG, check_exposure, read_config
from callgate.telemetry.terminal import say

if TYPE_CHECKING:
    from callgate.access.oidc.settings import Oidc
    from callgate.config.load import Loaded
    from callgate.config.schema.whole import Config
    from callgate.http.client import HttpClient
    from callgate.models.resolve import ModelConfig
    from callgate.tools.registry import Registry

Check = dict[str, Any]
MARKS = {"ok": "ok  ", "note": "note", "warn": "warn", "fail": "FAIL"}
SIDE_BY_SIDE = 8
"""Models that are checked concurrently."""


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Ask whether all that the config names is there.

    The port, each model's provider and key, each tool server.

    Costs at most a list of models or one token for each model. Exit code 0 when nothing failed, 1 when something did.
    """
    loaded = read_config(config)
    check_exposure(loaded, with_unknown_keys=True)
    checks = asyncio.run(_examined(loaded))
    failed = any(check["status"] == "fail" for check in checks)
    if as_json:
        say(json.dumps({"ok": not failed, "checks": checks}, indent=2))
    else:
        for check in checks:
            if check.get("ms") is None:
                took = ""
            else:
                took = f" ({check['ms']:g} ms)"
            say(f"{MARKS[check['status']]}  {check['what']}: {check['detail']}{took}")
            if check["todo"]:
                say(f"      do: {check['todo']}")
        if loaded.path is None or config is None:
            at = ""
        else:
            at = f" --config {config}"
        if failed:
            say(f"next: mend what has FAIL, then callgate doctor{at}")
        else:
            say(f"next: callgate serve{at}")
    if failed:
        raise typer.Exit(WRONG)


async def _examined(loaded: "Loaded") -> list[Check]:
    from callgate.cli.own_tools import OPEN_SECONDS, keep_quiet, opened_tools
    from callgate.models import litellm_model
    from callgate.models.building import model_client
    from callgate.models.commands import entries_of

    keep_quiet(loaded)
    entries = entries_of(loaded)
    checks = [_check("config", "ok", str(loaded.path or "built in")), await _port(loaded.config)]
    checks += [check async for check in _stores(loaded.config)]
    if loaded.config.auth.oidc is not None:
        checks.append(await _issuer(loaded.config.auth.oidc))
    client = model_client(loaded.config)
    places = asyncio.Semaphore(SIDE_BY_SIDE)
    try:
        checks += await asyncio.gather(*(_model(entry, client, places) for entry in entries))
    finally:
        await client.close()
        await litellm_model.close()
    checks += await _logins(loaded)
    if loaded.config.guardrails:
        checks += await _guardrails(loaded.config)
    async with opened_tools(loaded, OPEN_SECONDS) as registry:
        checks += _tools(loaded.config, registry)
    return checks


async def _guardrails(config: "Config") -> list[Check]:
    """Say what hooks do, and whether those that are servers answer."""
    from callgate.guardrails.building import guardrails_of
    from callgate.guardrails.inspection import lines_of_hooks, servers_that_answer
    from callgate.runtime.limits import threads_of
    from callgate.tools.kinds.http.client import Web

    web = Web()
    threads = threads_of(config)
    try:
        failures = await servers_that_answer(guardrails_of(config, lambda: web, threads, lambda judged: None))
    finally:
        await web.close()
        threads.close()
    checks: list[Check] = []
    for entry, line in zip(config.guardrails, lines_of_hooks(config), strict=True):
        if failure := failures.get(entry.name, ""):
            todo = f"see `url`, `api_key` and `allow_private` of the guardrail: until it answers, `on_error: {entry.on_error}` counts"
            checks.append(_check(f"guardrail {entry.name}", "fail", failure, todo=todo))
        else:
            checks.append(_check(f"guardrail {entry.name}", "ok", line))
    return checks


def _check(
    what: str, status: str, detail: str, seconds: float | None = None, *, todo: str | None = None, **facts: Any
) -> Check:
    """Make a check's result. `todo`: what the operator can do."""
    ms = seconds and round(seconds * 1000, 1)
    return {"what": what, "status": status, "detail": detail, "ms": ms, "todo": todo, **facts}


async def _port(config: "Config") -> Check:
    host = config.server.host
    port = config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    what = f"port {port}"
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and await _is_callgate(host, port):
            return _check(what, "warn", f"a server is running on {host} already, and it is alive")
        todo = "end the program that has it, or choose another port with `server.port` or --port"
        return _check(what, "fail", f"cannot listen on {host}: {error.strerror}", todo=todo)
    return _check(what, "ok", f"free on {host}")


async def _stores(config: "Config") -> AsyncIterator[Check]:
    """Check what has to be read at a start. Without it a server begins, and refuses what needs it."""
    from callgate.cli.shared import KeysUnreadable, stored_key_count
    from callgate.config.entry_errors import BadEntry
    from callgate.state.building import check_files, check_postgres

    mistakes: list[str] = []
    try:
        check_files(config)
        await check_postgres(config)
    except BadEntry as error:
        mistakes = [f"{'.'.join(map(str, path))}: {reason}" for path, reason in error.mistakes()]
    if config.ledger.url is None:
        try:
            stored_key_count(config)
        except KeysUnreadable as error:
            mistakes.append(str(error))
    for mistake in mistakes:
        yield _check(
            "store", "fail", mistake, todo="until it can be used a server refuses what needs it, and serves the rest"
        )
    if not mistakes and (config.data_dir is not None or config.ledger.url is not None):
        yield _check("store", "ok", "the ledger and the keys can be read")


async def _issuer(oidc: "Oidc") -> Check:
    """Check that the issuer gives its keys, and that the algorithms of the config are those of its keys."""
    from callgate.access.oidc.building import looked_at
    from callgate.config.entry_errors import BadEntry

    began = time.monotonic()
    try:
        issuer = await looked_at(oidc)
    except BadEntry as error:
        return _check("issuer", "fail", str(error), todo="mend the config")
    seconds = time.monotonic() - began
    if issuer.keys is None:
        todo = "see whether its discovery document can be had from this machine; tokens are refused until then, and keys are not"
        return _check("issuer", "fail", f"{oidc.issuer}: {issuer.failure}", seconds, todo=todo)
    usable = [name for name in oidc.algorithms if any(key.is_for(name) for key in issuer.keys.keys)]
    if not usable:
        return _check(
            "issuer",
            "fail",
            f"{oidc.issuer}: none of its keys is for one of `algorithms`",
            seconds,
            todo="name another",
        )
    detail = f"{oidc.issuer}: {len(issuer.keys.keys)} key(s), for {', '.join(usable)}"
    told = issuer.discovered
    if oidc.client_id is not None and (told is None or told.authorization is None or told.token is None):
        return _check("issuer", "warn", f"{detail}; it does not say where the page is to sign in", seconds)
    return _check("issuer", "ok", detail, seconds)


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


async def _model(entry: "ModelConfig", client: "HttpClient", places: asyncio.Semaphore) -> Check:
    from callgate.models.commands import row_of
    from callgate.models.inspection import look, proxy_to

    async with places:
        row = await row_of(entry)
        row["proxy"] = await proxy_to(entry, client)
        finding = await look(entry, client)
    how = f"{row['lane']} lane"
    if row["why_litellm"]:
        how += f" (translated: {row['why_litellm']})"
    how += f", tool calling {row['tool_calling']}"
    if row["host"]:
        how += f", {row['host']}"
    if row["proxy"] is not None:
        how += f", through {row['proxy']}"
    return _check(
        f"model {entry.model_name}",
        finding.verdict,
        f"{finding.detail}; {how}",
        finding.seconds,
        todo=finding.todo,
        **row,
    )


async def _logins(loaded: "Loaded") -> list[Check]:
    """Check who is logged in to the MCP servers."""
    from callgate.cli.own_logins import has_logins, opened_logins

    if not has_logins(loaded.config):
        return []
    from callgate.tools.kinds.mcp.commands import line_of
    from callgate.tools.kinds.mcp.logins import LoginFailed, login_facts

    try:
        async with opened_logins(loaded) as logins:
            facts = [login_facts(status) for status in await logins.statuses()]
    except LoginFailed as error:
        return [_check("logins", "fail", str(error))]
    checks: list[Check] = []
    for login in facts:
        todo = None
        if login["state"] != "ok":
            todo = f"callgate mcp login {login['server']}"
        detail = line_of(login)
        if login["per"] == "server" and todo is None:
            detail += "; whoever may use its tools acts as this login"
        is_needed = todo is not None and login["per"] == "server"
        checks.append(_check(f"login {login['server']}", "warn" if is_needed else "ok", detail, todo=todo))
    return checks


def _tools(config: "Config", registry: "Registry") -> Iterator[Check]:
    from callgate.runtime.search_savings import search_savings
    from callgate.runtime.tool_patterns import pattern_problems, tools_offered_to_no_model

    kinds = {status.name: status.kind for status in registry.sources()}
    for status in (*registry.sources(), *registry.services()):
        ready = status.state == "ready"
        detail = status.error or str(status.state)
        if ready:
            verdict = "ok"
            todo = None
        else:
            verdict = "fail"
            todo = _todo_for_source(config, status.name, status.kind, detail)
        yield _check(f"source {status.name}", verdict, detail, status.seconds, todo=todo, kind=status.kind)
    yield from _unusable(registry, kinds)
    for clash in registry.clashes():
        yield _check(f"name {clash.claimed}", "warn", str(clash))
    for problem in pattern_problems(config, registry):
        yield _check("pattern", "warn", str(problem))
    if (idle := tools_offered_to_no_model(config)) is not None:
        yield _check("tools", "warn", idle[1])
    yield from (_check("tool search", "note", saving) for saving in search_savings(config, registry))
    tools = registry.tools()
    yield _check("tools", "ok", f"{len(tools)} can be used")


def _unusable(registry: "Registry", kinds: dict[str, str]) -> Iterator[Check]:
    """Yield the tools that cannot be offered, and those that are held back."""
    for broken in registry.quarantined():
        # Unusable tools of a document or server are not the config's fault.
        if not broken.source:
            verdict = "fail"
        elif kinds.get(broken.source) == "openapi":
            verdict = "note"
        else:
            verdict = "warn"
        if broken.source:
            source = f" of {broken.source}"
            todo = None
        else:
            source = ""
            todo = "correct its entry; the other tools work without it"
        if broken.is_held:
            yield _check(f"tool {broken.name}{source}", "warn", broken.reason, todo="callgate tools accept")
            continue
        yield _check(f"tool {broken.name}{source}", verdict, f"cannot be used: {broken.reason}", todo=todo)


def _todo_for_source(config: "Config", name: str, kind: str, detail: str) -> str:
    if kind == "python":
        return "look at what its function marked with @start needs; it is tried again while Callgate serves"
    server = config.mcp_servers.get(name)
    if server is None:
        return "look whether `document` can be fetched from this machine; it is tried again while Callgate serves"
    if server.command is not None:
        if detail.startswith("there is no program"):
            return "install it, or write its whole path as `command`"
        return f"start it by hand and read what it says: {shlex.join((server.command, *server.args))}"
    if server.oauth is not None and "login" in detail:
        return f"callgate mcp login {name}"
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        return "name the authority that signed its certificate in the variable SSL_CERT_FILE (PEM), in place of the system's"
    if "[SSL" in detail:
        return "look whether it speaks TLS at all: with plain HTTP, `url` begins with `http://`"
    return "look whether it runs, and at `url` and `headers`; it is tried again while Callgate serves"
