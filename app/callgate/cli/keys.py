"""`callgate keys`: making, listing and revoking clients' keys.

With a `data_dir` in the config, keys go into its key store, which a running server reads within a second. Without one,
`create` prints the lines for the config, and the config is where keys are kept.
"""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from callgate.cli.shared import WRONG, ConfigOption, JsonOption, give_up, read_config

if TYPE_CHECKING:
    from callgate.auth.key_store import KeyStore, StoredKey
    from callgate.auth.keys import KeyEntry
    from callgate.config.schema import Key

keys = typer.Typer(help="Clients' keys.", no_args_is_help=True)

Names = Annotated[str, typer.Argument(help="Whose key it is; appears in logs.")]


@keys.command("create")
def create(
    name: Names,
    config: ConfigOption = None,
    models: Annotated[list[str] | None, typer.Option("--model", help="A model it may ask, or a glob; repeat.")] = None,
    tools: Annotated[list[str] | None, typer.Option("--tool", help="A tool it may use, or a glob; repeat.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1)] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Requests under way at once, in each process.")] = None,
    budget_per_day: Annotated[float | None, typer.Option(min=0, help="US dollars.")] = None,
    budget_per_month: Annotated[float | None, typer.Option(min=0, help="US dollars.")] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="It may decide about calls that wait for approval.")
    ] = False,
    admin: Annotated[bool, typer.Option("--admin", help="It may have the config read again.")] = False,
    see: Annotated[Literal["none", "own", "all"], typer.Option(help="Whose recorded runs it may see.")] = "none",
) -> None:
    """Make a key. It is shown once; only its hash is kept."""
    from callgate.auth.keys import mint_key

    secret, digest = mint_key()
    said = {
        "name": name,
        "hash": digest,
        "models": models or ["*"],
        "tools": tools or ["*"],
        "approve": approve,
        "admin": admin,
        "see": see,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel": parallel,
        "budget_per_day": budget_per_day,
        "budget_per_month": budget_per_month,
    }
    key = _checked(said)
    loaded = read_config(config, without_variables=True).config
    if any(other.name == name for other in loaded.keys):
        raise give_up(f"the config has a key called `{name}` already")
    if loaded.data_dir is None:
        typer.echo(f"key (shown this once): {secret}\n\nfor config.yaml:\n\nkeys:\n{_as_yaml(key)}")
        return
    from callgate.auth.key_store import NameTaken
    from callgate.runtime.builders.access import key_entry

    store = key_store(loaded.data_dir)
    try:
        store.add(key_entry(key))
    except NameTaken:
        raise give_up(f"`{name}` is the name of another key, perhaps of a revoked one") from None
    finally:
        store.close()
    typer.echo(f"key (shown this once): {secret}")


@keys.command("list")
def list_keys(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Every key, of the config and of the store. The keys themselves are nowhere."""
    from callgate.runtime.builders.access import key_entry

    loaded = read_config(config, without_variables=True).config
    rows = [_row(key_entry(key), "config") for key in loaded.keys]
    if loaded.data_dir is not None:
        store = key_store(loaded.data_dir)
        rows += [_row(stored.entry, "store", stored) for stored in store.all()]
        store.close()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo("no keys")
    for row in rows:
        limits = " ".join(f"{name}={value:g}" for name, value in row["limits"].items())
        state = "revoked" if row["revoked_at"] else "active"
        typer.echo(
            f"{row['name']:<24} {row['kept_in']:<7} {state:<8} models={','.join(row['models'])}"
            f" tools={','.join(row['tools']) or '-'} {limits}".rstrip()
        )


@keys.command("revoke")
def revoke(name: Names, config: ConfigOption = None) -> None:
    """Take a key of the store out of use, within a second. One of the config is taken out of the config."""
    loaded = read_config(config, without_variables=True).config
    if any(key.name == name for key in loaded.keys):
        raise give_up(f"`{name}` stands in the config: take it out there")
    if loaded.data_dir is None:
        raise give_up("there is no key store: the config has no `data_dir`")
    store = key_store(loaded.data_dir)
    revoked = store.revoke(name)
    store.close()
    if not revoked:
        typer.echo(f"callgate: there is no key called `{name}` in use", err=True)
        raise typer.Exit(WRONG)
    typer.echo(f"{name}: revoked")


def _checked(said: dict[str, Any]) -> "Key":
    """The same words as in the config, and the same rules for them."""
    from pydantic import ValidationError

    from callgate.config.schema import Key

    try:
        return Key.model_validate({name: value for name, value in said.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise give_up(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _as_yaml(key: "Key") -> str:
    import yaml

    written = key.model_dump(mode="json", exclude_defaults=True)
    text: str = yaml.safe_dump([written], sort_keys=False)
    return "".join(f"  {line}\n" for line in text.splitlines()).rstrip("\n")


def key_store(folder: str) -> "KeyStore":
    """The key store, or the end of the command with what is wrong with its file."""
    from callgate.auth.key_store import DamagedStore, KeyStore

    try:
        return KeyStore(Path(folder))
    except (OSError, DamagedStore) as error:
        raise give_up(f"data_dir: {error}") from None


def _row(entry: "KeyEntry", kept_in: str, stored: "StoredKey | None" = None) -> dict[str, Any]:
    from dataclasses import asdict

    limits = {name: value for name, value in asdict(entry.allowance).items() if value is not None}
    return {
        "name": entry.name,
        "kept_in": kept_in,
        "models": list(entry.models),
        "tools": list(entry.tools),
        "approve": entry.approve,
        "admin": entry.admin,
        "see": entry.see,
        "limits": limits,
        "created_at": _moment(stored.created_at if stored else None),
        "revoked_at": _moment(stored.revoked_at if stored else None),
    }


def _moment(at: float | None) -> str | None:
    return None if at is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
