"""The map of the code in `ARCHITECTURE.md`: its tables are made from the docstrings of the packages and from their imports.

python -m tests.architecture          write the tables
python -m tests.architecture walks    draw the walks of three requests again, into docs/assets/
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "app"
PACKAGE = SOURCE / "callgate"
PAGE = ROOT / "ARCHITECTURE.md"
ROLES = {"settings": "settings", "building": "building", "routes": "routes", "commands": "commands"}
"""What a subject has beside its code, by the name of the module or package."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A package, as its docstring describes it."""

    name: str
    purpose: str
    first: str | None
    """The module to read first."""
    page: str | None
    """The page of the docs about it."""

    @property
    def path(self) -> Path:
        return PACKAGE / self.name

    @property
    def depth(self) -> int:
        return self.name.count("/")


def folders() -> list[Folder]:
    """Return all packages, from the lowest layer to the highest, each followed by those inside it."""
    order = {name: place for place, name in enumerate(layers())}
    names = sorted(file.parent.relative_to(PACKAGE).as_posix() for file in PACKAGE.glob("*/**/__init__.py"))
    names = [name for name in names if name.partition("/")[2] not in ROLES]
    missing = {name.partition("/")[0] for name in names} - order.keys()
    assert not missing, f"give {missing} a place in the layers at the end of pyproject.toml"
    return [folder_of(name) for name in sorted(names, key=lambda name: (order[name.partition("/")[0]], name))]


def layers() -> list[str]:
    """Return the packages as import-linter's contract has them, the lowest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layered = next(contract for contract in contracts if contract["id"] == "layers")
    return [name for layer in reversed(layered["layers"]) for name in re.findall(r"\w+", layer)]


def folder_of(name: str) -> Folder:
    text = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text("utf-8"))) or ""
    first = re.search(r"^Read `(\w+)` first\.", text, re.MULTILINE)
    page = re.search(r"For users: `(\S+)`\.", text)
    return Folder(
        name=name,
        purpose=" ".join(text.partition("\n\n")[0].split()),
        first=first[1] if first else None,
        page=page[1] if page else None,
    )


def importers() -> Mapping[str, set[str]]:
    """Return for each package the others whose own code imports it: settings, building, routes and commands of a subject
    belong to upper layers, and may import what they like."""
    importing: dict[str, set[str]] = defaultdict(set)
    for file in PACKAGE.glob("*/**/*.py"):
        importer, *inside = file.relative_to(PACKAGE).with_suffix("").parts
        if not ROLES.keys().isdisjoint(inside):
            continue
        for module in imports_of(file):
            for name in packages_around(module):
                if importer != name.partition("/")[0] and module.split(".")[-2] != "settings":
                    importing[name].add(importer)
    return importing


def imports_of(file: Path) -> Iterator[str]:
    """Yield the modules and names of ours that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "callgate":
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name.startswith("callgate."))


def packages_around(module: str) -> Iterator[str]:
    """Yield the packages that a module stands in, as paths below `callgate`."""
    parts = module.split(".")[1:]
    for length in range(1, len(parts) + 1):
        if PACKAGE.joinpath(*parts[:length]).is_dir():
            yield "/".join(parts[:length])


def table_of_packages() -> str:
    """Return the rows of all packages."""
    users = importers()
    lines = ["| package | what it is for | read first | who calls it |", "|---|---|---|---|"]
    for folder in folders():
        name = f"{'&nbsp;' * 4 * folder.depth}`{folder.name.rpartition('/')[2]}`"
        first = f"[`{folder.first}`]({link_to(folder)})" if folder.first else ""
        callers = ", ".join(f"`{user}`" for user in sorted(users.get(folder.name, ())))
        lines.append(f"| {name} | {folder.purpose} | {first} | {callers} |")
    return "\n".join(lines)


def link_to(folder: Folder) -> str:
    return (folder.path / f"{folder.first}.py").relative_to(ROOT).as_posix()


def table_of_subjects() -> str:
    """Return for each subject where its settings, its building, its routes, its commands and its pages are."""
    lines = [f"| subject | {' | '.join(ROLES.values())} | docs | tests |", "|---" * (len(ROLES) + 3) + "|"]
    for folder in folders():
        parts = [part_of(folder, role) for role in ROLES]
        if any(parts):
            page = f"[{Path(folder.page).stem}]({folder.page})" if folder.page else ""
            tests = f"[`tests/{folder.name}`](tests/{folder.name})" if (ROOT / "tests" / folder.name).is_dir() else ""
            lines.append(f"| `{folder.name}` | {' | '.join(parts)} | {page} | {tests} |")
    return "\n".join(lines)


def part_of(folder: Folder, role: str) -> str:
    for path in (folder.path / f"{role}.py", folder.path / role):
        if path.exists():
            return f"[`{path.name}`]({path.relative_to(ROOT).as_posix()})"
    return ""


TABLES = {"packages": table_of_packages, "subjects": table_of_subjects}


def page_as_it_should_be() -> str:
    """Return `ARCHITECTURE.md` with its tables made anew."""
    text = PAGE.read_text("utf-8")
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, behind = text.partition(begin)
        text = before + begin + table() + end + behind.partition(end)[2]
    return text
