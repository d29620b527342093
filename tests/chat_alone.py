"""Serves a config without the subjects named on the command line: of these there are only the settings, which are the config's.

python -m tests.chat_alone config.yaml access fleet recorder runs
"""

import asyncio
import sys
from importlib.abc import MetaPathFinder
from typing import Any

SETTINGS = {"", "settings", "oidc", "oidc.settings"}
"""Modules of a subject that are there, because they are settings or a package that has some."""


class Absent(MetaPathFinder):
    """Fails the import of each module of some subjects."""

    def __init__(self, subjects: list[str]) -> None:
        self._subjects = subjects

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        root, _, inner = fullname.partition(".")
        subject, _, module = inner.partition(".")
        if root == "callgate" and subject in self._subjects and module not in SETTINGS:
            raise ModuleNotFoundError(f"{fullname} is absent")


async def serve_chat(file: str) -> None:
    from callgate.assembly import assembled
    from callgate.config.load import load
    from tests.harness.server import serve

    async with serve(assembled(load(file).config)) as url:
        sys.stdout.write(f"{url}\n")
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.meta_path.insert(0, Absent(sys.argv[2:]))
    asyncio.run(serve_chat(sys.argv[1]))
