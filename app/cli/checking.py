"""`callgate check`: what can be said of a config without asking anybody anything."""

import typer

from app.cli.shared import ConfigOption, check_exposure, read_config


def check(config: ConfigOption = None) -> None:
    """Read the config and say what is wrong with it, without asking anybody anything."""
    loaded = read_config(config)
    check_exposure(loaded)
    typer.echo(f"{loaded.path or 'the built-in config'}: fine")
