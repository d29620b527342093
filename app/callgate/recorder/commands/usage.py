"""`callgate usage`: requests, tokens and tool calls by key, model or day, read from the file in `data_dir`,
or asked of a running server where there is none."""

import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from callgate.cli.server_client import KeyOption, UrlOption, ask_server
from callgate.cli.shared import ConfigOption, JsonOption, give_up, read_config
from callgate.conversation.prices import Price
from callgate.recorder.commands.runs import is_asked
from callgate.telemetry.terminal import say


def usage(
    config: ConfigOption = None,
    by: Annotated[Literal["key", "model", "day"], typer.Option(help="What is added up.")] = "key",
    days: Annotated[int, typer.Option(min=1, max=400, metavar="N", help="How many days, today included.")] = 7,
    as_json: JsonOption = False,
    url: UrlOption = None,
    server_key: KeyOption = None,
) -> None:
    """What was used."""
    if is_asked(config, url):
        rows = ask_server("GET", f"/v1/usage?by={by}&days={days}", url, server_key)["data"]
    else:
        rows = _read(config, by, days)
    if as_json:
        say(json.dumps(rows, indent=2))
        return
    say(f"{by:<28} {'requests':>9} {'failed':>7} {'calls':>7} {'tokens in':>11} {'tokens out':>11} {'cost':>12}")
    for row in rows:
        cost = f"${row['cost']:.5f}"
        say(
            f"{row['name']:<28} {row['requests']:>9} {row['failed']:>7} {row['calls']:>7}"
            f" {row['tokens_in']:>11} {row['tokens_out']:>11} {cost:>12}{_without_price(row['unpriced_requests'])}"
        )


def _without_price(requests: int) -> str:
    if not requests:
        return ""
    return f" + {requests} request{'' if requests == 1 else 's'} without a price"


def _read(config: Path | None, by: str, days: int) -> list[dict[str, Any]]:
    """Return the usage in `data_dir`, added up."""
    from callgate.recorder.store import FILE, RunStore, StoreUnusable, day_of
    from callgate.recorder.usage import grouped

    loaded = read_config(config, without_variables=True).config
    folder = loaded.data_dir
    assert folder is not None, "a server is asked where there is none"
    used = []
    if (Path(folder) / FILE).exists():
        try:
            store = RunStore(Path(folder), read_only=True)
            used = store.usage(day_of(time.time() - (days - 1) * 86_400))
            store.close()
        except StoreUnusable as error:
            raise give_up(f"data_dir: {error}") from None
    from callgate.models.prices import price_of

    prices: dict[str, Price | None] = {}
    for name in {use.model for use in used}:
        entry = next((entry for entry in loaded.model_list if entry.model_name == name), None)
        prices[name] = None if entry is None else price_of(entry.litellm_params.reveal(), entry.model_info)
    return grouped(used, by, prices)
