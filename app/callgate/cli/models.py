"""`callgate models`: what can be asked, and the way each takes."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import typer

from callgate.cli.shared import ConfigOption, JsonOption, give_up, read_config

if TYPE_CHECKING:
    from callgate.config.load import Loaded
    from callgate.upstream.resolve import ModelEntry


def models(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """The models: the lane each takes, how it is asked for tool calls, and where it is. Nobody is asked anything."""
    loaded = read_config(config)
    rows = asyncio.run(_rows(loaded))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = [("NAME", "LANE", "TOOL CALLING", "HOST"), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    for line in table:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def entries_of(loaded: "Loaded") -> "list[ModelEntry]":
    """The models, or the end of the command with the place of the mistake."""
    from callgate.runtime.builders.errors import BadEntry
    from callgate.runtime.builders.models import model_entries

    try:
        return model_entries(loaded.config)
    except BadEntry as error:
        raise give_up(loaded.complaint(*error.mistakes)) from None


async def row_of(entry: "ModelEntry") -> dict[str, Any]:
    from callgate.upstream.inspection import whereabouts
    from callgate.upstream.tool_calling import ToolCalling

    place = await whereabouts(entry)
    choice = ToolCalling(lambda entry, choice: None).choice(entry)
    return {
        "name": entry.model_name,
        "model": str(entry.litellm_params["model"]),
        "lane": place.lane,
        "why_litellm": place.why,
        "tool_calling": "auto" if choice is None else choice.format,
        "decided_by": None if choice is None else choice.decided_by,
        "host": place.host,
    }


async def _rows(loaded: "Loaded") -> list[dict[str, Any]]:
    from callgate.cli.own_tools import keep_quiet

    keep_quiet(loaded)
    return [await row_of(entry) for entry in entries_of(loaded)]


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    calling = "auto: found out at first use" if row["decided_by"] is None else row["tool_calling"]
    return row["name"], row["lane"], calling, row["host"] or "-"
