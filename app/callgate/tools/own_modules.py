"""Modules of the operator's own, beside the config file: which names they may not have.

Their folder comes first on the import path, so that one called like a module of the standard library, of ours or of a library
that we use would be loaded in its place, or never be loaded. `sys.path[0]` is that folder.
"""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

OURS = "callgate"


def name_taken(module: str) -> str:
    """Why a module of this name in the first folder of the import path is refused; empty where it is not."""
    top = module.partition(".")[0]
    file = _file_of(top, Path(sys.path[0]))
    owner = _owner(top, file, Path(sys.path[0])) if file is not None else None
    return "" if owner is None else f"{file} has the name of a module of {owner}: give the file another name"


def hiding(folder: Path) -> Iterator[str]:
    """What stands in a folder and would be loaded in place of a module that Callgate needs. For a warning."""
    names = (each.stem if each.suffix == ".py" else each.name for each in sorted(folder.iterdir()))
    for name in dict.fromkeys(names):
        if (file := _file_of(name, folder)) is not None and (owner := _owner(name, file, folder)) is not None:
            yield f"{file} hides the module {name} of {owner}: give the file another name"


def _file_of(name: str, folder: Path) -> Path | None:
    return next((it for it in (folder / f"{name}.py", folder / name / "__init__.py") if it.is_file()), None)


def _owner(name: str, file: Path, folder: Path) -> str | None:
    """Whose a name is that a file has: the standard library's, Callgate's, or that of a library that Callgate uses."""
    if name in sys.stdlib_module_names:
        return "the standard library"
    if name == OURS:
        return None if file.parent.samefile(Path(__file__).parents[1]) else "Callgate"
    if PathFinder.find_spec(name, [each for each in sys.path if each not in ("", str(folder))]) is None:
        return None
    owners = metadata.packages_distributions().get(name, ())
    return next(iter(_used().intersection(owners)), None)


def _used() -> frozenset[str]:
    """The distributions that Callgate is installed with, as they write their names."""
    found: set[str] = set()
    wanted = [OURS]
    while wanted:
        name = wanted.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # a dependency for another system, or of an extra that is not installed
        if distribution.name not in found:
            found.add(distribution.name)
            wanted += [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in distribution.requires or ()]
    return frozenset(found)
