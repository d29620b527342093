"""Makes the operator's modules beside the config file importable, and checks their names.

Their folder comes first on the import path. A file in it with the name of a module of the standard library, of Callgate or of
a library that it uses would replace that module: so such names are looked up elsewhere.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import metadata
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import callgate

OURS = "callgate"


class _NeededFirst:
    """Finds the modules that Callgate needs, ignoring the operator's folders."""

    def __init__(self) -> None:
        self._folders: list[str] = []

    def folders(self) -> list[str]:
        return [folder for folder in self._folders if folder in sys.path]

    def add(self, folder: str) -> None:
        if folder not in self._folders:
            self._folders.append(folder)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:
            return None
        for folder in map(Path, self.folders()):
            if (file := _file_of(name, folder)) is not None and _owner(name, file, folder) is not None:
                spec = BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)
                if (spec := spec or PathFinder.find_spec(name, _elsewhere(folder))) is None:
                    # A standard library module of another system, whose importers expect this error.
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
                return spec
        return None


_needed_first = _NeededFirst()


def make_importable(*folders: Path) -> None:
    """Put the operator's folders first on the import path, the last of them before the others."""
    for folder in map(str, folders):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
        _needed_first.add(folder)
    if _needed_first not in sys.meta_path:
        sys.meta_path.insert(0, _needed_first)


def own_folders() -> list[str]:
    """Return the operator's folders on the import path."""
    return _needed_first.folders()


def name_taken(module: str) -> str:
    """Return why a module of this name in the operator's folders is refused; else empty."""
    top = module.partition(".")[0]
    for folder in map(Path, dict.fromkeys((sys.path[0], *_needed_first.folders()))):
        if (file := _file_of(top, folder)) is not None and (owner := _owner(top, file, folder)) is not None:
            return f"{file} has the name of a module of {owner}: give the file another name"
    return ""


def hiding(folder: Path) -> Iterator[str]:
    """Yield a warning for each file of a folder that is never loaded because Callgate needs another module of its name."""
    names = (entry.stem if entry.suffix == ".py" else entry.name for entry in sorted(folder.iterdir()))
    for name in dict.fromkeys(names):
        if (file := _file_of(name, folder)) is not None and (owner := _owner(name, file, folder)) is not None:
            yield f"{file} has the name of a module of {owner} and is never loaded: give the file another name"


def _file_of(name: str, folder: Path) -> Path | None:
    return next((file for file in (folder / f"{name}.py", folder / name / "__init__.py") if file.is_file()), None)


def _owner(name: str, file: Path, folder: Path) -> str | None:
    """Return the owner of a module name: the standard library, Callgate, or a library that Callgate uses."""
    if name in sys.stdlib_module_names:
        return "the standard library"
    if name == OURS:
        if file.parent.samefile(Path(callgate.__file__).parent):
            return None
        return "Callgate"
    if PathFinder.find_spec(name, _elsewhere(folder)) is None:
        return None
    owners = metadata.packages_distributions().get(name, ())
    return next(iter(_used().intersection(owners)), None)


def _elsewhere(folder: Path) -> list[str]:
    return [entry for entry in sys.path if entry not in ("", str(folder), *_needed_first.folders())]


@lru_cache(maxsize=1)
def _used() -> frozenset[str]:
    """Return the distributions that Callgate depends on, by their own spelling."""
    names: set[str] = set()
    to_visit = [OURS]
    while to_visit:
        name = to_visit.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # a dependency for another system, or of an extra that is not installed
        if distribution.name not in names:
            names.add(distribution.name)
            to_visit += [
                re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in distribution.requires or ()
            ]
    return frozenset(names)
