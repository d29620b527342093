"""`callgate usage`: what was used and what came of it, by key, model, tool, provider and flaw, read from the file in `data_dir`,
or asked of a running server where there is none."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlencode

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.server_client import KeyOption, UrlOption, ask_server
from callgate.cli.shared import give_up, read_config
from callgate.conversation.prices import Price
from callgate.recorder.commands.runs import is_asked
from callgate.telemetry.terminal import in_a_line, say

if TYPE_CHECKING:
    from callgate.config.schema.whole import Config

COLUMNS: Final = {
    "requests": "requests",
    "failed": "failed",
    "answers": "answers",
    "failed_attempts": "failed",
    "calls": "calls",
    "failed_calls": "failed",
    "broken_calls": "broken",
    "broken_runs": "broken",
    "tokens_in": "tokens in",
    "tokens_cached": "cached",
    "tokens_cache_written": "written",
    "tokens_out": "tokens out",
    "first_p50": "first p50",
    "p50": "p50",
    "p95": "p95",
    "cost": "cost",
}
"""The columns of a row, as far as it has them, and their heads."""
WIDE: Final = frozenset({"tokens_in", "tokens_out", "cost"})
SECONDS: Final = frozenset({"first_p50", "p50", "p95"})


def usage(
    config: ConfigOption = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="What is added up: key, model, tool, provider, flaw, with commas between; or day."
        ),
    ] = "key",
    interval: Annotated[
        Literal["hour", "day"] | None, typer.Option(help="A row for each hour or day. Default: the whole time.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=400, metavar="N", help="How many days, today included.")] = 7,
    as_json: JsonOption = False,
    url: UrlOption = None,
    server_key: KeyOption = None,
) -> None:
    """What was used, and what came of it."""
    if is_asked(config, url):
        query = {"by": by, "days": str(days), **({"interval": interval} if interval else {})}
        rows = ask_server("GET", f"/v1/usage?{urlencode(query)}", url, server_key)["data"]
    else:
        rows = _read(config, by, interval, days)
    if as_json:
        say(json.dumps(rows, indent=2))
        return
    for line in _table(rows, by):
        say(line)


def _table(rows: list[dict[str, Any]], by: str) -> list[str]:
    """Return the lines of a table."""
    if not rows:
        return ["nothing was used in this time"]
    columns = [name for name in COLUMNS if name in rows[0]]
    names = [f"{row['at']}  {row['name']}" if row.get("at") not in (None, row["name"]) else row["name"] for row in rows]
    width = max(28, *(len(in_a_line(name)) for name in names))
    lines = ["".join([f"{by:<{width}}", *(f"{COLUMNS[name]:>{_width(name)}}" for name in columns)])]
    for name, row in zip(names, rows, strict=True):
        values = "".join(f"{_value(column, row[column]):>{_width(column)}}" for column in columns)
        lines.append(f"{in_a_line(name):<{width}}{values}{_without_price(row.get('unpriced_requests', 0))}")
    return lines


def _width(column: str) -> int:
    if column in WIDE:
        return 13
    return 10


def _value(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column == "cost":
        return f"${value:.5f}"
    if column in SECONDS:
        return f"{value:.3f}s"
    return str(value)


def _without_price(requests: int) -> str:
    if not requests:
        return ""
    return f" + {requests} request{'' if requests == 1 else 's'} without a price"


def _read(config: Path | None, by: str, interval: str | None, days: int) -> list[dict[str, Any]]:
    """Return the usage in `data_dir`, added up."""
    from callgate.conversation.errors import ChatError
    from callgate.recorder.recorder import Recorder
    from callgate.recorder.store import StoreUnusable
    from callgate.recorder.usage_report import UsageReport, most_days, usage_dimensions

    loaded = read_config(config, without_variables=True).config
    folder = loaded.data_dir
    assert folder is not None, "a server is asked where there is none"
    try:
        dimensions, step = usage_dimensions(by, interval)
    except ChatError as error:
        raise give_up(f"--by: {error}") from None
    if step == "minute":
        raise give_up("--by minute: a running server has the last hour, see --url")
    most = most_days(dimensions, step)
    if days > most:
        raise give_up(f"--days: hours, tools, providers and flaws are kept for {most} days")
    try:
        return UsageReport(Recorder(str, Path(folder)), dimensions, step, days).rows(None, _Prices(loaded).of)
    except StoreUnusable as error:
        raise give_up(f"data_dir: {error}") from None


class _Prices:
    """The prices of the config's models."""

    def __init__(self, config: "Config") -> None:
        self._config = config

    def of(self, model: str) -> Price | None:
        """Return the price of a model; None if it is not known."""
        from callgate.models.prices import price_of

        entry = next((entry for entry in self._config.model_list if entry.model_name == model), None)
        if entry is None:
            return None
        return price_of(entry.litellm_params.reveal(), entry.model_info)
