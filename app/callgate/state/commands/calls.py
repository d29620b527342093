"""`callgate calls`: lists the tool calls in the ledger."""

import json
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.shared import NO_FOLDER, give_up, read_config
from callgate.telemetry.terminal import in_a_line, say

if TYPE_CHECKING:
    from callgate.config.schema.process import LedgerSection

CallState: TypeAlias = Literal["waiting", "started", "done", "failed", "withdrawn", "unknown"]
NOT_KEPT: Final = "not kept (logging.content: off when it ran, or the call has not ended)"
COLUMNS = "started_at, state, tool, run_id, turn, call_id, key_name, writes, ended_at, note"


def calls(
    config: ConfigOption = None,
    state: Annotated[CallState | None, typer.Option(help="Only runs in this state.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="How many, the newest first.")] = 20,
    content: Annotated[
        bool, typer.Option("--content", help="Show arguments and results too, where they are kept (`logging.content`).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """The newest runs of tools. `unknown` ones may have had their effect, and are never run again by themselves."""
    loaded = read_config(config, without_variables=True).config
    columns = f"{COLUMNS}, arguments, result" if content else COLUMNS
    if loaded.ledger.url is not None:
        rows = _read_postgres(loaded.ledger, columns, state, count)
    elif loaded.data_dir is None:
        raise give_up(f"nothing is written down: {NO_FOLDER}")
    else:
        rows = _read(Path(loaded.data_dir), columns, state, count)
    if as_json:
        say(json.dumps(rows, indent=2))
        return
    if not rows:
        say("no calls", err=True)
    for run in rows:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run["started_at"]))
        if run["ended_at"]:
            took = f"{run['ended_at'] - run['started_at']:.3f}s"
        else:
            took = "-"
        line = (
            f"{began}  {run['state']:<8} {took:>9}  {run['tool']:<28} {run['run_id']} {run['call_id']}  {run['note']}"
        )
        say(in_a_line(line.rstrip()))
        for name in ("arguments", "result") if content else ():
            text = NOT_KEPT if run[name] is None else run[name]
            say(f"    {name}: {text}")


def _read(folder: Path, columns: str, state: str | None, count: int) -> list[dict[str, Any]]:
    from callgate.state.local.sqlite import FILE

    path = folder / FILE
    if not path.exists():
        return []
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise give_up(f"data_dir: {path} cannot be read as a ledger ({error})") from None
    database.row_factory = sqlite3.Row
    try:
        rows = database.execute(
            f"SELECT {columns} FROM calls WHERE ?1 IS NULL OR state = ?1 ORDER BY started_at DESC LIMIT ?2",
            (state, count),
        )
        return [dict(row) for row in rows]
    except sqlite3.Error as error:
        raise give_up(f"data_dir: {path} cannot be read as a ledger ({error})") from None
    finally:
        database.close()


def _read_postgres(section: "LedgerSection", columns: str, state: str | None, count: int) -> list[dict[str, Any]]:
    import asyncio

    from callgate.state.database import DatabaseAway, NotMigrated

    try:
        from callgate.state.cluster.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        raise give_up(error) from None
    assert section.url is not None, "asked for where there is one"
    database = PostgresDatabase(section.url.get_secret_value(), section.namespace)

    async def read() -> list[dict[str, Any]]:
        await database.open()
        try:
            rows = await database.fetch(
                f"SELECT {columns} FROM calls WHERE CAST(?1 AS TEXT) IS NULL OR state = ?1 ORDER BY started_at DESC LIMIT ?2",
                state,
                count,
            )
        finally:
            await database.close()
        return [dict(zip(columns.split(", "), row, strict=True)) for row in rows]

    try:
        return asyncio.run(read())
    except (DatabaseAway, NotMigrated) as error:
        raise give_up(f"ledger.url: {error}") from None
