"""Shared by several commands: reading the config, and errors for an invalid config.

Each command imports what it needs when it runs, so that a health check is fast.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from callgate.config import redaction
from callgate.telemetry.terminal import say

if TYPE_CHECKING:
    import typer

    from callgate.config.load import Loaded
    from callgate.config.problems import ConfigError
    from callgate.config.schema.whole import Config

WRONG = 1
"""The exit code of a command that found something wrong."""
UNUSABLE = 2
"""The exit code where the config or the command line itself cannot be used."""
NO_FOLDER = "the config has no `data_dir` (`data_dir: ./data` makes a folder beside it)"


def read_config(
    path: Path | None,
    flags: dict[str, Any] | None = None,
    *,
    without_variables: bool = False,
    text: str | None = None,
) -> "Loaded":
    """Read the config; exits with an error message if it is invalid. `without_variables`: for commands that only read files of
    `data_dir`. `text`: the config itself instead of a file."""
    from callgate.config.load import load
    from callgate.config.problems import ConfigError

    try:
        loaded = load(path, flags=flags or {}, lenient=without_variables, text=text)
    except ConfigError as error:
        raise give_up(
            error if error.valid_part is None else _with_what_cannot_be_made(error, error.valid_part)
        ) from None
    except OSError as error:
        raise give_up(error) from None
    redaction.current.add(*loaded.secrets)
    make_importable(loaded.folder())
    return loaded


def _with_what_cannot_be_made(error: "ConfigError", valid: "Loaded") -> "ConfigError":
    """Add the mistakes that are found by building the valid entries."""
    from callgate.cli.making import mistakes_in
    from callgate.config.problems import ConfigError

    make_importable(valid.folder())
    problems = valid.complaint(*mistakes_in(valid)).problems
    reported = {(problem.spot, problem.path) for problem in error.problems}
    return ConfigError(
        [*error.problems, *(problem for problem in problems if (problem.spot, problem.path) not in reported)]
    )


def make_importable(folder: Path) -> None:
    """Put the config's folder first on the import path, then the current one, for the operator's tools."""
    from callgate.tools.kinds.python import own_modules

    own_modules.make_importable(Path.cwd(), folder)


def check_exposure(loaded: "Loaded", *, with_unknown_keys: bool = False) -> None:
    """Exit if the server would listen beyond loopback without keys. `with_unknown_keys`: not where the stored keys cannot be read;
    until they can be nobody is let in without a key of the config."""
    from callgate.callers import exposure

    config = loaded.config
    try:
        keys = config.keys_and_issuers() + stored_key_count(config)
        had_keys = _had_keys(config)
    except KeysUnreadable as error:
        if with_unknown_keys:
            return
        raise give_up(error) from None
    mistake = exposure.check_exposure(
        config.server.host,
        config.auth.mode,
        keys,
        had_keys=had_keys,
        has_empty_list="keys" in config.model_fields_set,
    )
    if mistake is not None:
        raise give_up(mistake)


class KeysUnreadable(Exception):
    """Raised where the stored keys cannot be read, with the place and the reason."""


def count_keys(config: "Config") -> int:
    """Return the number of keys in the config and the key store, and of its issuer; exits where they cannot be read."""
    try:
        return config.keys_and_issuers() + stored_key_count(config)
    except KeysUnreadable as error:
        raise give_up(error) from None


def stored_key_count(config: "Config") -> int:
    """Return the number of keys in the key store. Raises `KeysUnreadable`."""
    if config.ledger.url is not None:
        from callgate.state.database import DatabaseAway, NotMigrated

        try:
            from callgate.access.ledger_keys import KeysByHand

            store = KeysByHand(config.ledger.url.get_secret_value(), config.ledger.namespace)
        except (NotMigrated, ModuleNotFoundError) as error:
            raise give_up(f"ledger.url: {error}") from None
        except DatabaseAway as error:
            raise KeysUnreadable(f"ledger.url: {error}") from None
        try:
            return len(store.all())
        except DatabaseAway as error:
            raise KeysUnreadable(f"ledger.url: {error}") from None
        finally:
            store.close()
    if config.data_dir is None:
        return 0
    from callgate.access.key_store import DamagedStore, stored_keys

    try:
        return stored_keys(Path(config.data_dir))
    except (OSError, DamagedStore) as error:
        raise KeysUnreadable(f"data_dir: {error}") from None


def _had_keys(config: "Config") -> bool:
    """True if the data folder knows that the server had keys."""
    if config.data_dir is None:
        return False
    from callgate.access.key_store import DamagedStore, had_keys

    try:
        return had_keys(Path(config.data_dir))
    except (OSError, DamagedStore) as error:
        raise KeysUnreadable(f"data_dir: {error}") from None


def check_stored_files(loaded: "Loaded") -> None:
    """Exit with all stored files that cannot be used."""
    from callgate.config.entry_errors import BadEntry
    from callgate.state.building import check_files

    try:
        check_files(loaded.config)
    except BadEntry as error:
        raise give_up(loaded.complaint(*error.mistakes())) from None


def check_reachable(loaded: "Loaded", *, may_be_away: bool = False) -> None:
    """Exit if the shared ledger cannot be used; with `may_be_away` not if it only cannot be reached now."""
    if loaded.config.ledger.url is None:
        return
    import asyncio

    from callgate.config.entry_errors import BadEntry
    from callgate.state.building import check_postgres

    try:
        asyncio.run(check_postgres(loaded.config, may_be_away=may_be_away))
    except BadEntry as error:
        raise give_up(loaded.complaint(*error.mistakes())) from None


def give_up(why: object) -> "typer.Exit":
    """Say why on standard error; to be raised."""
    import typer

    say(f"callgate: {why}", err=True)
    return typer.Exit(UNUSABLE)
