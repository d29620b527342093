"""`callgate keys`: creates, lists and revokes clients' keys.

With a `data_dir` in the config, keys are in its key store, which a running server reads within a second. Without one,
`create` prints the lines for the config.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.shared import NO_FOLDER, WRONG, count_keys, give_up, read_config
from callgate.telemetry.terminal import say

if TYPE_CHECKING:
    from callgate.access.key_store import KeyStore
    from callgate.access.ledger_keys import KeysByHand
    from callgate.access.settings import Key
    from callgate.config.load import Loaded
    from callgate.config.schema.whole import Config

FIRST_KEY = (
    "This is the first key. {since} a server of this config answers no request without one, also none from this machine:\n"
    "give clients the key as their API key."
)

LAST_KEY = (
    "That was the last key in use. This machine is not let in without one again: make another with `callgate keys create NAME`,\n"
    "or write `auth: off` into the config and start the server again, and everyone is let in."
)

keys = typer.Typer(help="Clients' keys.", no_args_is_help=True)

Names = Annotated[str, typer.Argument(help="Whose key it is; appears in logs.")]


@keys.command("create")
def create(
    name: Names,
    config: ConfigOption = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="A model it may ask, or a glob; repeat.")
    ] = None,
    tools: Annotated[
        list[str] | None, typer.Option("--tool", metavar="NAME", help="A tool it may use, or a glob; repeat.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    parallel: Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests under way at once.")] = None,
    budget_per_day: Annotated[float | None, typer.Option(min=0, metavar="USD", help="US dollars.")] = None,
    budget_per_month: Annotated[float | None, typer.Option(min=0, metavar="USD", help="US dollars.")] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="It may decide about calls that wait for approval.")
    ] = False,
    admin: Annotated[bool, typer.Option("--admin", help="It may have the config read again.")] = False,
    see: Annotated[Literal["none", "own", "all"], typer.Option(help="Whose recorded runs it may see.")] = "none",
    events: Annotated[
        Literal["off", "x", "reasoning", "openwebui"] | None,
        typer.Option(help="How its clients are shown that tools run; openwebui for Open WebUI's status lines."),
    ] = None,
    usage: Annotated[
        Literal["auto", "sum", "last_turn"] | None,
        typer.Option(help="What its answers report; last_turn for agents that compact by the sum."),
    ] = None,
    offer: Annotated[
        Literal["any", "with_client_tools"] | None,
        typer.Option(help="Which of its requests are offered tools of the config; with_client_tools for agents."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the key into this file instead of showing it; where the file is there, nothing is made.",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DATE|30d|12h", help="When it ends; never, if not given.")
    ] = None,
) -> None:
    """Make a key. It is shown once; only its hash is kept."""
    if into is not None and into.exists():
        say(f"{into} is there already: nothing was made")
        return
    if into is not None and not os.access(into.parent, os.W_OK | os.X_OK):
        raise give_up(f"{into}: nothing can be written there")
    from callgate.access.keys import mint_key

    secret, digest = mint_key()
    fields = {
        "name": name,
        "hash": digest,
        "models": models or ["*"],
        "tools": tools or ["*"],
        "approve": approve,
        "admin": admin,
        "see": see,
        "events": events,
        "usage": usage,
        "offer": offer,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel": parallel,
        "budget_per_day": budget_per_day,
        "budget_per_month": budget_per_month,
        "expires": None if expires is None else _moment_after(expires),
    }
    key = _validate(fields)
    whole = read_config(config, without_variables=True)
    loaded = whole.config
    if any(other.name == name for other in loaded.keys):
        raise give_up(f"the config has a key called `{name}` already")
    if loaded.auth.mode == "keys" and not count_keys(loaded):
        since = "From now on" if keeps_keys(loaded) else "Once it is there,"
        say(FIRST_KEY.format(since=since), err=True)
    for note in _names_nothing(whole, key):
        say(f"note: {note}", err=True)
    shown = f"key (shown this once): {secret}"
    if keeps_keys(loaded):
        _keep(loaded, key)
    if into is not None:
        with os.fdopen(os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secret)
        shown = f"key: in {into}"
    say(
        shown
        if keeps_keys(loaded)
        else f"{shown}\n\nIt counts as soon as its hash stands in {whole.path or 'config.yaml'}:\n\nkeys:\n{_as_yaml(key)}"
    )


def _keep(config: "Config", key: "Key") -> None:
    from callgate.access.building import key_entry
    from callgate.access.key_store import NameTaken

    store = key_store(config)
    try:
        store.add(key_entry(key))
    except NameTaken:
        raise give_up(f"`{key.name}` is the name of another key, perhaps of a revoked one") from None
    finally:
        store.close()


@keys.command("list")
def list_keys(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Every key, of the config and of the store. The keys themselves are nowhere."""
    from callgate.access.building import key_entry
    from callgate.access.key_store import key_facts

    loaded = read_config(config, without_variables=True).config
    rows = [key_facts(key_entry(key)) for key in loaded.keys]
    if keeps_keys(loaded):
        store = key_store(loaded)
        rows += [key_facts(of_store.entry, of_store) for of_store in store.all()]
        store.close()
    if as_json:
        say(json.dumps(rows, indent=2))
        return
    if not rows:
        say("no keys")
    for row in rows:
        say(_line(row))


@keys.command("rotate")
def rotate(
    name: Names,
    config: ConfigOption = None,
    keep: Annotated[
        str, typer.Option(metavar="24h|7d", help="How long the old key is taken as well; 0h for not at all.")
    ] = "24h",
) -> None:
    """Give a name a new key. The old one goes on for a while, so that clients can change over."""
    from callgate.access.keys import mint_key
    from callgate.config.schema.values import moment_of

    until = _moment_after(keep)
    secret, digest = mint_key()
    loaded = read_config(config, without_variables=True).config
    mine = next((key for key in loaded.keys if key.name == name), None)
    if mine is not None:
        key = mine.model_copy(update={"hash": digest, "old_hash": mine.hash, "old_expires": until})
        say(f"key (shown this once): {secret}\n\nin config.yaml, in place of its entry:\n\n{_as_yaml(key)}")
        return
    if not keeps_keys(loaded):
        raise give_up(f"the config has no key called `{name}`, and no `data_dir` with a key store")
    store = key_store(loaded)
    rotated = store.rotate(name, digest, moment_of(until))
    store.close()
    if not rotated:
        say(f"callgate: there is no key called `{name}` in use", err=True)
        raise typer.Exit(WRONG)
    say(f"key (shown this once): {secret}\nthe old one is taken until {until}")


Limit = Annotated[str | None, typer.Option(metavar="N|none", help="none takes the limit away.")]
Budget = Annotated[str | None, typer.Option(metavar="USD|none", help="US dollars; none takes the limit away.")]


@keys.command("limit")
def limit(
    name: Names,
    config: ConfigOption = None,
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
    parallel: Limit = None,
    budget_per_day: Budget = None,
    budget_per_month: Budget = None,
) -> None:
    """Give a key of the store other limits, within a second. What is not named stays as it is."""
    from msgspec.structs import replace

    from callgate.access.building import key_entry
    from callgate.access.key_store import key_facts

    named = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel": parallel,
        "budget_per_day": budget_per_day,
        "budget_per_month": budget_per_month,
    }
    changes = {field: text for field, text in named.items() if text is not None}
    if not changes:
        raise give_up("name a limit, as in --budget-per-day 5 or --parallel none")
    loaded = read_config(config, without_variables=True).config
    if any(key.name == name for key in loaded.keys):
        raise give_up(f"`{name}` stands in the config: change its limits there")
    if not keeps_keys(loaded):
        raise give_up(f"there is no key store: {NO_FOLDER}")
    store = key_store(loaded)
    entry = next((key.entry for key in store.all() if key.entry.name == name and key.revoked_at is None), None)
    if entry is None:
        store.close()
        say(f"callgate: there is no key called `{name}` in use", err=True)
        raise typer.Exit(WRONG)
    numbers = {field: _number(field, text) for field, text in changes.items() if text != "none"}
    checked = key_entry(_validate({"name": name, "hash": entry.hash, **numbers})).allowance
    allowance = replace(entry.allowance, **{field: getattr(checked, field) for field in changes})
    store.limit(name, allowance)
    store.close()
    say(_line({**key_facts(replace(entry, allowance=allowance)), "kept_in": "store"}))


@keys.command("revoke")
def revoke(name: Names, config: ConfigOption = None) -> None:
    """Take a key of the store out of use, within a second. One of the config is taken out of the config."""
    loaded = read_config(config, without_variables=True).config
    if any(key.name == name for key in loaded.keys):
        raise give_up(f"`{name}` stands in the config: take it out there")
    if not keeps_keys(loaded):
        raise give_up(f"there is no key store: {NO_FOLDER}")
    store = key_store(loaded)
    revoked = store.revoke(name)
    in_use = any(entry.revoked_at is None for entry in store.all())
    store.close()
    if not revoked:
        say(f"callgate: there is no key called `{name}` in use", err=True)
        raise typer.Exit(WRONG)
    say(f"{name}: revoked")
    if loaded.auth.mode == "keys" and not in_use and not loaded.keys_and_issuers():
        say(LAST_KEY, err=True)


def _number(field: str, text: str) -> float:
    """Read the number of a limit."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise give_up(f"{field}: should be a number, or none") from None


def _moment_after(text: str) -> str:
    """Parse a time, or a duration from now."""
    if match := re.fullmatch(r"(\d{1,5})(h|d)", text):
        from callgate.access.key_store import written_moment

        seconds = int(match[1]) * (3600 if match[2] == "h" else 86_400)
        return written_moment(time.time() + seconds) or ""
    return text


def _names_nothing(loaded: "Loaded", key: "Key") -> Iterator[str]:
    """Yield warnings for the key's globs that match nothing, as far as the config shows."""
    from callgate.cli.making import registry_or_none
    from callgate.runtime.tool_patterns import unknown_models
    from callgate.tools.tool_filter import unmatched

    for _, pattern in unknown_models(loaded.config, key.models):
        yield pattern
    registry = registry_or_none(loaded)
    if registry is not None and not registry.source_names():
        yield from map(str, unmatched(key.tools, registry.tools()))


def _line(row: dict[str, Any]) -> str:
    """Format a key with its permissions."""
    from callgate.access.key_store import written_moment

    now = written_moment(time.time()) or ""
    if row["revoked_at"]:
        state = "revoked"
    elif (row["expires"] or "9") <= now:
        state = "expired"
    else:
        state = "active"
    parts = [f"{row['name']:<24} {row['kept_in']:<7} {state:<8}"]
    parts += [f"models={','.join(row['models'])}", f"tools={','.join(row['tools']) or '-'}"]
    parts += [right for right in ("approve", "admin") if row[right]]
    parts += [f"see={row['see']}"] if row["see"] != "none" else []
    parts += [f"{name}={row[name]}" for name in ("events", "usage", "offer") if row[name]]
    parts += [f"{name}={value:g}" for name, value in row["limits"].items()]
    parts += [f"expires={row['expires']}"] if row["expires"] else []
    if row["old_key_until"] and row["old_key_until"] > now:
        parts.append(f"old_key_until={row['old_key_until']}")
    return " ".join(parts)


def _validate(fields: dict[str, Any]) -> "Key":
    """Validate a key by the schema of the config."""
    from pydantic import ValidationError

    from callgate.access.settings import Key
    from callgate.config.schema.values import SHAPES
    from callgate.untrusted.pydantic_readers import check_model

    try:
        return check_model(Key, {name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        why = SHAPES.get(first.get("ctx", {}).get("pattern", ""), first["msg"])
        raise give_up(f"{'.'.join(map(str, first['loc']))}: {why}") from None


def _as_yaml(key: "Key") -> str:
    import yaml

    written = key.model_dump(mode="json", exclude_defaults=True)
    text: str = yaml.safe_dump([written], sort_keys=False)
    return "".join(f"  {line}\n" for line in text.splitlines()).rstrip("\n")


def keeps_keys(config: "Config") -> bool:
    return config.data_dir is not None or config.ledger.url is not None


def key_store(config: "Config") -> "KeyStore | KeysByHand":
    """Open the key store; exits with an error message if it cannot be opened."""
    from callgate.access.key_store import DamagedStore, KeyStore

    if config.ledger.url is None:
        assert config.data_dir is not None, "asked for where there is one"
        try:
            return KeyStore(Path(config.data_dir))
        except (OSError, DamagedStore) as error:
            raise give_up(f"data_dir: {error}") from None
    from callgate.access.ledger_keys import KeysByHand
    from callgate.state.database import DatabaseAway, NotMigrated

    try:
        return KeysByHand(config.ledger.url.get_secret_value(), config.ledger.namespace)
    except (DatabaseAway, NotMigrated, ModuleNotFoundError) as error:
        raise give_up(f"ledger.url: {error}") from None
