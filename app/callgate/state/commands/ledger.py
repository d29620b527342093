"""`callgate ledger`: the tables of a ledger that several machines share."""

import asyncio

import typer

from callgate.cli.options import ConfigOption
from callgate.cli.progress import progress
from callgate.cli.shared import give_up, read_config
from callgate.telemetry.terminal import say

ledger = typer.Typer(help="The ledger that several machines share.", no_args_is_help=True)


@ledger.callback()
def _group() -> None:
    """The ledger that several machines share."""


@ledger.command("migrate")
def migrate(config: ConfigOption = None) -> None:
    """Make the tables in Postgres, or bring them up to date. Run it before a new version is served, with the right to alter them."""
    section = read_config(config).config.ledger
    if section.url is None:
        raise give_up("the config has no `ledger.url`, and the file in `data_dir` makes its own tables")
    from callgate.state.building import NO_DRIVER

    try:
        from callgate.state.cluster.postgres import migrate
        from callgate.state.database import DatabaseAway, NotMigrated

        try:
            with progress(f"migrating {section.namespace}"):
                is_changed = asyncio.run(migrate(section.url.get_secret_value(), section.namespace))
        except (DatabaseAway, NotMigrated) as error:
            raise give_up(f"ledger.url: {error}") from None
    except ModuleNotFoundError:
        raise give_up(NO_DRIVER) from None
    say(f"{section.namespace}: {'made' if is_changed else 'up to date'}")
