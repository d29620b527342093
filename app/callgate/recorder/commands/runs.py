"""`callgate runs`: shows the recorded runs in `data_dir`, or those of a running server where there is none."""

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args
from urllib.parse import quote, urlencode

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.progress import progress
from callgate.cli.server_client import UrlOption, address_of, ask_server, fetch_answer, follow, run_asking
from callgate.cli.shared import NO_FOLDER, WRONG, give_up, read_config
from callgate.state.commands.calls import CallState, calls
from callgate.telemetry.terminal import in_a_line, say

if TYPE_CHECKING:
    from callgate.recorder.run_filter import RunFilter
    from callgate.records.row import RecordedRun, RunRow

REPLAY_SECONDS: Final = 1800.0
"""The timeout of a replay, which may include approvals and slow local models."""
UNDER_WAY: Final = "under_way"
QUESTION_CHARACTERS: Final = 60

runs = typer.Typer(help="Recorded runs; without a command the newest.", invoke_without_command=True)

ServerKeyOption = Annotated[
    str | None, typer.Option(metavar="KEY", help="The key to ask the server with.", envvar="CALLGATE_KEY")
]
Id = Annotated[str, typer.Argument(help="As `callgate runs list` and the header `x-callgate-run` have it.")]
ContentOption = Annotated[bool, typer.Option("--content", help="Show the texts too, if they are kept.")]


@runs.callback()
def newest(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(hidden=True)] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", hidden=True)] = None,
) -> None:
    if context.invoked_subcommand is not None:
        return
    if state is None:
        list_runs(config)
        return
    say("callgate: `runs --state` asks for calls of tools: that is `callgate calls --state` by now", err=True)
    if state not in get_args(CallState):
        raise give_up(f"--state should be one of {', '.join(get_args(CallState))}")
    calls(config, cast("CallState", state))


@runs.command("list")
def list_runs(
    config: ConfigOption = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this model.")] = None,
    key: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this key.")] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only runs in this state, for example `failed`.")
    ] = None,
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs that called this tool.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="Only runs with a call that ended so: raised, denied, truncated, …"),
    ] = None,
    provider: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs that this provider answered.")] = None,
    finding: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs with this finding.")] = None,
    search: Annotated[str, typer.Option(metavar="TEXT", help="Only runs with this text in what is kept of them.")] = "",
    odd: Annotated[
        bool, typer.Option("--odd", help="Only runs that failed, broke a call or asked a model again.")
    ] = False,
    sort: Annotated[
        Literal["newest", "oldest", "slowest", "dearest", "largest"], typer.Option(help="Which runs come first.")
    ] = "newest",
    count: Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="How many, the newest first.")] = 20,
    as_json: JsonOption = False,
    live: Annotated[
        bool, typer.Option("--follow", "-f", help="Ask a running server, and go on with each run that ends.")
    ] = False,
    url: UrlOption = None,
    server_key: ServerKeyOption = None,
) -> None:
    """The newest runs."""
    from msgspec.structs import asdict

    from callgate.recorder.run_filter import RunFilter

    run_filter = RunFilter(
        model=model, key=key, state=state, odd=odd, tool=tool, outcome=outcome, provider=provider, finding=finding
    )
    filters = {name: "1" if value is True else value for name, value in asdict(run_filter).items() if value}
    if live:
        if search or tool or outcome or provider or finding or sort != "newest":
            raise give_up("--follow takes --model, --key, --state and --odd alone")
        _follow(filters, count, url, server_key, as_json=as_json)
        return
    if is_asked(config, url):
        query = urlencode({**filters, **({"q": search} if search else {}), "sort": sort, "limit": str(count)})
        rows = [_row(row) for row in ask_server("GET", f"/v1/runs?{query}", url, server_key)["data"]]
    else:
        with progress("searching the recorded runs"):
            rows = _listed(config, run_filter, search, sort, count)
    if as_json:
        say(json.dumps([_facts(row) for row in rows or ()], indent=2))
        return
    if not rows:
        say("no runs", err=True)
    for row in rows or ():
        say(_line(row))


def _listed(config: Path | None, run_filter: "RunFilter", search: str, sort: str, count: int) -> "list[RunRow]":
    """Return runs in `data_dir`."""
    import msgspec

    from callgate.recorder.recorder import SCANNED_RUNS, Recorder
    from callgate.recorder.run_search import ORDERS
    from callgate.recorder.store import StoreUnusable

    recorder = Recorder(str, Path(_folder(config)))
    run_filter = msgspec.structs.replace(run_filter, oldest_first=sort == "oldest")
    most = SCANNED_RUNS if sort in ORDERS else count
    try:
        rows, _ = recorder.matching(run_filter, most, search)
    except StoreUnusable as error:
        raise give_up(f"data_dir: {error}") from None
    if sort in ORDERS:
        rows = sorted(rows, key=ORDERS[sort], reverse=True)
    return rows[:count]


@runs.command("show")
def show(
    id: Id,
    config: ConfigOption = None,
    content: ContentOption = False,
    events: Annotated[bool, typer.Option("--events", help="Every event with all its facts, one a line.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    server_key: ServerKeyOption = None,
) -> None:
    """One run, turn by turn: who was asked, what became of each call."""
    from callgate.recorder.commands.run_story import story

    replays: list[str] | None = None
    if is_asked(config, url):
        run, replays = _asked_one(id, url, server_key, content=content)
    else:
        run = _one(id, config)
    if as_json:
        import msgspec

        whole = _facts(run.row) | {"events": [msgspec.structs.asdict(event) for event in run.events]}
        say(json.dumps((whole | ({"content": dict(run.content)} if content else {})), indent=2))
        return
    if events:
        for event in run.events:
            facts_given = {name: value for name, value in event.facts.items() if value not in (None, "", [])}
            facts = " ".join(f"{name}={json.dumps(value)}" for name, value in facts_given.items())
            turn = "" if event.turn is None else f"turn {event.turn + 1}"
            say(f"{event.at:9.3f}s  {turn:<8} {event.kind:<18} {facts}".rstrip())
        return
    if replays is None:
        replays = [replay.id for replay in _read(config, lambda store: store.replays_of(run.row.id))]
    for line in story(run, replays, content=content):
        say(line)
    if content and url is None and run.row.kept == "nothing":
        say(f"the server that answered it may have its texts in memory: add --url {address_of(None)}", err=True)


@runs.command("export")
def export(
    id: Id,
    config: ConfigOption = None,
    form: Annotated[
        Literal["json", "curl", "recording", "otlp"],
        typer.Option("--as", help="All that is kept, a line for the shell, a file that a test plays, or spans."),
    ] = "json",
) -> None:
    """A run for others, on standard output. `curl` and `recording` need a run whose texts are kept (`record.content`)."""
    from callgate.recorder.export import as_curl, as_facts, as_recording
    from callgate.recorder.replayable import NotReplayable
    from callgate.recorder.spans import as_otlp

    with progress(f"reading {id}"):
        run = _one(id, config)
    try:
        if form == "curl":
            server = read_config(config, without_variables=True).config.server
            say(as_curl(run, server.public_url or f"http://{server.host}:{server.port}"), nl=False)
        else:
            written = {"json": as_facts, "recording": as_recording, "otlp": as_otlp}[form](run)
            say(json.dumps(written, indent=1))
    except NotReplayable as why:
        say(f"callgate: {id} cannot be exported: {why}", err=True)
        raise typer.Exit(WRONG) from None


@runs.command("replay")
def replay(
    id: Annotated[str | None, typer.Argument(help="The run to ask again.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Another model than the run's own.")
    ] = None,
    from_turn: Annotated[
        int, typer.Option(min=1, metavar="N", help="The turn to begin with, as `callgate runs show` counts them.")
    ] = 1,
    run_tools: Annotated[
        bool, typer.Option("--run-tools", help="Run the tools again; what is not read-only waits for approval.")
    ] = False,
    offline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Judge an exported recording by today's gate; nothing is asked or run."),
    ] = None,
    url: UrlOption = None,
    server_key: ServerKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a recorded run again, on a running server. Exit code 1 if it was stopped, or a recording is judged otherwise."""
    if offline is not None:
        _judge(offline, as_json=as_json)
        return
    if id is None:
        raise give_up("which run? Name one, or a file with --offline")
    if run_tools and sys.stdin.isatty():
        typer.confirm("Its tools are run again, and may do again what they did. Go on?", abort=True, err=True)
    body = {"model": model, "from_turn": from_turn - 1, "tools": "run" if run_tools else "recorded"}
    replayed = ask_server("POST", f"/v1/runs/{quote(id, safe='')}/replay", url, server_key, body, REPLAY_SECONDS)
    if as_json:
        say(json.dumps(replayed, indent=2))
    else:
        say(f"{replayed['run']} asks {replayed['replay_of']} again, of {replayed['model']}", err=True)
        if replayed["answer"] is not None:
            say(replayed["answer"]["choices"][0]["message"].get("content") or "")
    if replayed["stopped"]:
        say(f"callgate: stopped: {replayed['stopped']}", err=True)
        raise typer.Exit(WRONG)


def _judge(file: Path, *, as_json: bool) -> None:
    from callgate.cli.judging import NoRecording, differences
    from callgate.records.row import RECORDED_TEXT
    from callgate.untrusted.doors import open_text
    from callgate.untrusted.readers import read_leniently

    try:
        calls, changed = differences(read_leniently(open_text(file.read_text(encoding="utf-8"), RECORDED_TEXT)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:  # NoRecording is one of them
        why = error if isinstance(error, (OSError, NoRecording)) else f"it is no recording ({error!r})"
        raise give_up(f"{file}: {why}") from None
    if as_json:
        say(json.dumps({"calls": calls, "differences": [difference._asdict() for difference in changed]}, indent=2))
    for difference in () if as_json else changed:
        before, now = (
            ", ".join(f"{name} {word}" for name, word in verdicts) for verdicts in (difference.before, difference.now)
        )
        say(f"turn {difference.turn + 1}: was {before or 'no call'}, is {now or 'no call'}")
    if changed:
        raise typer.Exit(WRONG)
    if not as_json:
        say(f"{calls} calls, judged as they were")


def _follow(filters: dict[str, str], count: int, url: str | None, key: str | None, *, as_json: bool) -> None:
    """Print the newest runs of a server, the oldest first, and then each run when it ends, until the server ends or Ctrl-C."""
    shown_ids: set[str] = set()

    async def list_them() -> None:
        listed = await fetch_answer("GET", f"/v1/runs?{urlencode({**filters, 'limit': count})}", url, key)
        for row in reversed(listed["data"]):
            if row["state"] != UNDER_WAY:
                shown_ids.add(row["id"])
                _say(row, as_json=as_json)

    def take(kind: str, row: dict[str, Any]) -> None:
        matches = all(row.get("odd") if name == "odd" else row.get(name) == value for name, value in filters.items())
        if kind == "run" and matches and row["state"] != UNDER_WAY and row["id"] not in shown_ids:
            _say(row, as_json=as_json)

    with contextlib.suppress(KeyboardInterrupt):
        run_asking(follow("/v1/feed?kinds=runs", url, key, take, list_them), url)


def _say(row: dict[str, Any], *, as_json: bool) -> None:
    say(json.dumps(row) if as_json else _line(_row(row)))


@runs.command("prune")
def prune(
    config: ConfigOption = None,
    days: Annotated[
        float | None,
        typer.Option(min=0, metavar="DAYS", help="Remove runs older than this. Default: `record.keep.days`."),
    ] = None,
) -> None:
    """Remove old runs now."""
    from callgate.recorder.store import RunStore, StoreUnusable

    loaded = read_config(config, without_variables=True).config
    if loaded.data_dir is None:
        raise give_up(f"nothing is written: {NO_FOLDER}")
    keep = loaded.record.keep
    try:
        store = RunStore(Path(loaded.data_dir))
        now = time.time()
        removed = store.prune(
            older_than=now - (keep.days if days is None else days) * 86_400,
            most_bytes=keep.bytes,
            wire_older_than=now - loaded.record.wire_keep.days * 86_400,
        )
        store.close()
    except (OSError, StoreUnusable) as error:
        raise give_up(f"data_dir: {error}") from None
    say(f"{removed} removed")


def _one(id: str, config: Path | None) -> "RecordedRun":
    run: RecordedRun | None = _read(config, lambda store: store.get(id))
    if run is None:
        say(f"callgate: no run {id} is recorded", err=True)
        raise typer.Exit(WRONG)
    return run


def is_asked(config: Path | None, url: str | None) -> bool:
    """Return whether a running server is asked: one that is named, or the usual one where nothing is kept in a folder."""
    if url is not None:
        return True
    if read_config(config, without_variables=True).config.data_dir is not None:
        return False
    say(f"the config has no `data_dir`: asking the server at {address_of(None)}", err=True)
    return True


def _asked_one(id: str, url: str | None, key: str | None, *, content: bool) -> "tuple[RecordedRun, list[str]]":
    """Return a run of a running server, and the ids of its replays."""
    import msgspec

    from callgate.records.row import RecordedRun, RunEvent

    facts = ask_server("GET", f"/v1/runs/{quote(id, safe='')}{'?content=1' if content else ''}", url, key)
    events = msgspec.convert(facts["events"], list[RunEvent])
    return RecordedRun(_row(facts), events, facts.get("content", {})), [replay["id"] for replay in facts["replays"]]


def _row(facts: Any) -> "RunRow":
    import msgspec

    from callgate.records.row import RunRow

    return msgspec.convert(facts, RunRow)


def _read(config: Path | None, read_store: Any) -> Any:
    """Read from the database; None if there is none yet."""
    from callgate.recorder.store import FILE, RunStore, StoreUnusable

    folder = _folder(config)
    if not (Path(folder) / FILE).exists():
        return None
    try:
        with contextlib.closing(RunStore(Path(folder), read_only=True)) as store:
            return read_store(store)
    except StoreUnusable as error:
        raise give_up(f"data_dir: {error}") from None


def _folder(config: Path | None) -> str:
    """Return the folder with the file of runs."""
    folder = read_config(config, without_variables=True).config.data_dir
    if folder is None:
        raise give_up(f"nothing is written: {NO_FOLDER}")
    return str(folder)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _line(row: "RunRow") -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.began))
    took = "-" if row.seconds is None else f"{row.seconds:.3f}s"
    if row.deployment in ("", row.model):
        model = row.model
    else:
        model = f"{row.model} -> {row.deployment}"
    failed = max(row.attempts - row.turns, 0)
    odd = "".join(
        f"  {count} {what}"
        for count, what in (
            (row.broken_calls, "broken"),
            (row.failed_calls, "calls failed"),
            (failed, "attempts failed"),
        )
        if count
    )
    error = f"  {row.status} {row.error}" if row.error else ""
    tools = f"  {', '.join(row.tools)}" if row.tools else ""
    question = f"  “{row.question[:QUESTION_CHARACTERS]}”" if row.question else ""
    return in_a_line(
        f"{began}  {row.state:<11} {took:>9}  {model:<24} {row.id}  {_many(row.turns, 'turn')} {_many(row.calls, 'call')}"
        f"  {row.tokens_in}+{row.tokens_out} tokens{tools}{odd}{error}{question}"
    )


def _facts(row: "RunRow") -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(row)
