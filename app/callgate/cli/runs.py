"""`callgate runs`: the recorded runs, read from the file in `data_dir`. Neither a server nor a provider's key is needed."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callgate.cli.shared import WRONG, ConfigOption, JsonOption, give_up, read_config

if TYPE_CHECKING:
    from callgate.recorder.row import Recording, RunRow

runs = typer.Typer(help="Recorded runs.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="As `callgate runs list` and the header `x-callgate-run` have it.")]
ContentOption = Annotated[bool, typer.Option("--content", help="Show what was said too, where it was kept.")]


@runs.command("list")
def list_runs(
    config: ConfigOption = None,
    model: Annotated[str | None, typer.Option(help="Only runs of this model.")] = None,
    key: Annotated[str | None, typer.Option(help="Only runs of this key.")] = None,
    state: Annotated[str | None, typer.Option(help="Only runs in this state, for example `failed`.")] = None,
    odd: Annotated[
        bool, typer.Option("--odd", help="Only runs that failed, broke a call or asked a model again.")
    ] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """The newest runs."""
    from callgate.recorder.store import RunFilter

    found = _read(config, lambda store: store.page(RunFilter(model, key, state, odd), count))
    if as_json:
        typer.echo(json.dumps([_facts(row) for row in found or ()], indent=2))
        return
    for row in found or ():
        typer.echo(_line(row))


@runs.command("show")
def show(id: Id, config: ConfigOption = None, content: ContentOption = False, as_json: JsonOption = False) -> None:
    """One run, turn by turn."""
    found = _one(id, config)
    if as_json:
        import msgspec

        whole = _facts(found.row) | {"events": [msgspec.structs.asdict(event) for event in found.events]}
        typer.echo(json.dumps((whole | ({"content": dict(found.content)} if content else {})), indent=2))
        return
    row = found.row
    typer.echo(_line(row))
    typer.echo(f"  {row.route}, key {row.key or '-'}, {row.request_id}, content {row.kept}")
    if row.findings:
        typer.echo(f"  findings: {', '.join(row.findings)}")
    for event in found.events:
        facts = " ".join(
            f"{name}={json.dumps(value)}" for name, value in event.facts.items() if value not in (None, "", [])
        )
        turn = "" if event.turn is None else f"turn {event.turn + 1}"
        typer.echo(f"  {event.at:9.3f}s  {turn:<8} {event.kind:<18} {facts}".rstrip())
    if content:
        for part, text in found.content.items():
            typer.echo(f"\n{part}:\n{_printable(text)}")


@runs.command("prune")
def prune(
    config: ConfigOption = None,
    days: Annotated[
        float | None, typer.Option(min=0, help="Remove runs older than this. Default: `record.keep.days`.")
    ] = None,
) -> None:
    """Remove old runs now."""
    from callgate.recorder.store import RunStore, StoreUnusable

    loaded = read_config(config, without_variables=True).config
    if loaded.data_dir is None:
        raise give_up("nothing is written: the config has no `data_dir`")
    keep = loaded.record.keep
    try:
        store = RunStore(Path(loaded.data_dir))
        removed = store.prune(
            older_than=time.time() - (keep.days if days is None else days) * 86_400, most_bytes=keep.bytes
        )
        store.close()
    except (OSError, StoreUnusable) as error:
        raise give_up(f"data_dir: {error}") from None
    typer.echo(f"{removed} removed")


def _one(id: str, config: Path | None) -> "Recording":
    found: Recording | None = _read(config, lambda store: store.get(id))
    if found is None:
        typer.echo(f"callgate: no run {id} is recorded", err=True)
        raise typer.Exit(WRONG)
    return found


def _read(config: Path | None, read: Any) -> Any:
    """What is read from the file; None where there is none yet."""
    from callgate.recorder.store import FILE, RunStore, StoreUnusable

    folder = read_config(config, without_variables=True).config.data_dir
    if folder is None:
        raise give_up("nothing is written: the config has no `data_dir`")
    if not (Path(folder) / FILE).exists():
        return None
    try:
        store: RunStore = RunStore(Path(folder), read_only=True)
        try:
            return read(store)
        finally:
            store.close()
    except StoreUnusable as error:
        raise give_up(f"data_dir: {error}") from None


def _line(row: "RunRow") -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.began))
    took = "-" if row.seconds is None else f"{row.seconds:.3f}s"
    model = row.model if row.deployment in ("", row.model) else f"{row.model} -> {row.deployment}"
    odd = f"  {row.broken_calls} broken" if row.broken_calls else ""
    error = f"  {row.status} {row.error}" if row.error else ""
    return (
        f"{began}  {row.state:<11} {took:>9}  {_printable(model):<24} {row.id}  {row.turns} turns {row.calls} calls"
        f"  {row.tokens_in}+{row.tokens_out} tokens{odd}{error}"
    )


def _facts(row: "RunRow") -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(row)


def _printable(text: str) -> str:
    """A model's words must not move the cursor of whoever reads them."""
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)
