"""`callgate models`: lists the models, and the lane of each."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.server_client import KeyOption, UrlOption, ask_server
from callgate.cli.shared import give_up, read_config
from callgate.telemetry.terminal import say

if TYPE_CHECKING:
    from callgate.config.load import Loaded
    from callgate.models.inspection import Whereabouts
    from callgate.models.resolve import ModelConfig


def models(
    config: ConfigOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="Ask a running server, which also knows how each fares.")
    ] = False,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """The models, and how each will be asked for tool calls.

    Where each is, and why it is asked that way. No provider is asked anything.
    """
    if live or url:
        rows = _live(url, key)
    else:
        rows = asyncio.run(_rows(read_config(config)))
    if as_json:
        say(json.dumps(rows, indent=2))
        return
    names = ("NAME", "LANE", "TOOL CALLING", "HOST", *(("STATE",) if live or url else ()))
    table = [names]
    for row in rows:
        if row["decided_by"] is None:
            calling = "found out at first use"
        else:
            calling = row["tool_calling"]
        if row.get("cooldown_seconds"):
            state = f"cooling down for {row['cooldown_seconds']} s"
        else:
            state = "in use"
        table.append((row["name"], row["lane"], calling, row["host"] or "-", state)[: len(names)])
    widths = [max(len(line[column]) for line in table) for column in range(len(names))]
    for line in table:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        if "in_words" in row:
            say(f"\n{row['name']} ({row['model']})\n" + "\n".join(f"  {sentence}" for sentence in row["in_words"]))


def entries_of(loaded: "Loaded") -> "list[ModelConfig]":
    """Return the models; exits with an error message for an invalid one."""
    from callgate.config.entry_errors import BadEntry
    from callgate.models.building import model_entries

    try:
        return model_entries(loaded.config)
    except BadEntry as error:
        raise give_up(loaded.complaint(*error.mistakes())) from None


async def row_of(entry: "ModelConfig") -> dict[str, Any]:
    from callgate.models.inspection import whereabouts
    from callgate.models.tool_calling import ToolCalling

    place = await whereabouts(entry)
    choice, format = await ToolCalling(lambda entry, choice: None).predict(entry)
    if not entry.tools:
        offered = "No tools of this config are on offer to it: its entry has no `tools`."
    else:
        offered = f"On offer to it: {'all tools' if '*' in entry.tools else ', '.join(entry.tools)}."
    if choice is None:
        way = (
            "It is asked once, when it is first offered tools, whether it calls them natively; if not, they are described in "
            f"the prompt and its calls are read from its text, in the format `{format}`."
        )
    else:
        why = _WHO_SAYS[choice.decided_by]
        if choice.format == "native":
            way = f"It is offered tools natively: {why}."
        else:
            way = f"Tools are described in the prompt and its calls are read from its text, in the format `{choice.format}`: {why}."
    return {
        "name": entry.model_name,
        "model": str(entry.litellm_params["model"]),
        "lane": place.lane,
        "why_litellm": place.why,
        "tool_calling": "auto" if choice is None else choice.format,
        "decided_by": None if choice is None else choice.decided_by,
        "host": place.host,
        "in_words": [_way_there(place), way, offered],
    }


def _way_there(place: "Whereabouts") -> str:
    where = place.host or "its provider's API"
    match place.lane:
        case "demo":
            return "Built in: a few rules that show the loop, no language model."
        case "direct":
            return f"Callgate itself asks {where}, in OpenAI's protocol."
        case "responses":
            return f"Callgate itself asks {where}, in the protocol of OpenAI's Responses API."
        case "translated":
            return f"Callgate itself asks {where}, in the provider's own protocol; litellm translates."
        case _:
            return f"litellm asks {where}" + (f": {place.why}." if place.why else ", as the config says.")


_WHO_SAYS = {
    "config": "`tool_calling` says so",
    "family": "models of this name do",
    "litellm": "litellm's list of models says so",
    "model_info": "`model_info` says so",
    "provider": "its provider's API has tool calls",
}


async def _rows(loaded: "Loaded") -> list[dict[str, Any]]:
    from callgate.cli.own_tools import keep_quiet

    keep_quiet(loaded)
    return [await row_of(entry) for entry in entries_of(loaded)]


def _live(url: str | None, key: str | None) -> list[dict[str, Any]]:
    """Get the models from a running server."""
    rows: list[dict[str, Any]] = []
    for listed in ask_server("GET", "/v1/models?details=1", url, key)["data"]:
        for deployment in listed.get("x_callgate", {}).get("deployments", ()):
            calling = deployment["tool_calling"] or {"format": "auto", "decided_by": None}
            rows.append(
                {
                    "name": listed["id"],
                    "model": deployment["deployment"],
                    "lane": deployment["lane"],
                    "why_litellm": deployment.get("why"),
                    "tool_calling": calling["format"],
                    "decided_by": calling["decided_by"],
                    "host": deployment.get("host"),
                    "cooldown_seconds": deployment["cooldown_seconds"],
                }
            )
    return rows
