"""The config file: a `Config`, or `ConfigError` that says where the mistakes are."""

import atexit
import tempfile
from pathlib import Path

from callgate.config.load import load
from callgate.config.problems import ConfigError

FOLDER = tempfile.TemporaryDirectory()
atexit.register(FOLDER.cleanup)
FILE = Path(FOLDER.name) / "config.yaml"


def run(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        load(FILE, environ={})
    except ConfigError as error:
        assert error.problems  # noqa: PT017 - the error is one of two good ends
        str(error).encode("utf-8", "surrogatepass")
