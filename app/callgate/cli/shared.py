"""Shared by several commands: the config option, reading the config, and errors for an invalid config.

Each command imports what it needs when it runs, so that a health check is fast.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from callgate.config.load import Loaded
    from callgate.config.problems import ConfigError
    from callgate.config.schema import Config

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The config file. Default: $CALLGATE_CONFIG, ./config.yaml, or the built-in demo.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
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
        raise give_up(error if error.rest is None else _with_what_cannot_be_made(error, error.rest)) from None
    except OSError as error:
        raise give_up(error) from None
    make_importable(loaded.folder)
    return loaded


def _with_what_cannot_be_made(error: "ConfigError", rest: "Loaded") -> "ConfigError":
    """Add the mistakes that are found by building the valid entries."""
    from callgate.cli.making import mistakes_in
    from callgate.config.problems import ConfigError

    make_importable(rest.folder)
    found = rest.complaint(*mistakes_in(rest)).problems
    known = {(problem.spot, problem.path) for problem in error.problems}
    return ConfigError([*error.problems, *(each for each in found if (each.spot, each.path) not in known)])


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Escape control characters in a text for the terminal."""
    return "".join(letter if letter.isprintable() or letter in keep else repr(letter)[1:-1] for letter in text)


def in_a_line(text: str) -> str:
    """Escape control characters and line breaks, so that a text stays within a line."""
    return printable(text, keep="")


def make_importable(folder: Path) -> None:
    """Put the config's folder first on the import path, then the current one, for the operator's tools."""
    from callgate.tools import own_modules

    own_modules.make_importable(Path.cwd(), folder)


def check_exposure(loaded: "Loaded") -> None:
    """Exit if the server would listen beyond loopback without keys."""
    from callgate.auth import keys

    config = loaded.config
    mistake = keys.check_exposure(config.server.host, config.auth, count_keys(config), had_keys=_had_keys(config))
    if mistake is not None:
        raise give_up(mistake)


def count_keys(config: "Config") -> int:
    """Return the number of keys in the config and the key store."""
    if config.ledger.url is not None:
        from callgate.cli.keys import key_store

        store = key_store(config)
        try:
            return len(config.keys) + len(store.all())
        finally:
            store.close()
    if config.data_dir is None:
        return len(config.keys)
    from callgate.auth.key_store import DamagedStore, stored_keys

    try:
        return len(config.keys) + stored_keys(Path(config.data_dir))
    except (OSError, DamagedStore) as error:
        raise give_up(f"data_dir: {error}") from None


def _had_keys(config: "Config") -> bool:
    """True if the data folder knows that the server had keys."""
    if config.data_dir is None:
        return False
    from callgate.auth.key_store import DamagedStore, had_keys

    try:
        return had_keys(Path(config.data_dir))
    except (OSError, DamagedStore) as error:
        raise give_up(f"data_dir: {error}") from None


def check_reachable(loaded: "Loaded") -> None:
    """Exit if the shared ledger cannot be reached."""
    if loaded.config.ledger.url is None:
        return
    import asyncio

    from callgate.runtime.builders.errors import BadEntry
    from callgate.runtime.builders.stores import check_postgres

    try:
        asyncio.run(check_postgres(loaded.config))
    except BadEntry as error:
        raise give_up(loaded.complaint(*error.mistakes)) from None


def give_up(why: object) -> typer.Exit:
    """Say why on standard error; to be raised."""
    typer.echo(f"callgate: {why}", err=True)
    return typer.Exit(UNUSABLE)
