"""What is shipped: the locks, the wheel, the image and the compose file."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from callgate.config.load import load

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
LOCKS = ("requirements.lock", "requirements-build.lock", "requirements-image.lock", "requirements-dev.lock")

COMES_WITH = {
    "pydantic-core": "pydantic",  # the other half of the same library
    "click": "typer",  # typer's public API is made of it
    "httpcore2": "httpx2",  # the same project's lower half, released with it
}
"""Distributions whose modules are imported though another one is declared."""


def locked(name: str) -> dict[str, list[str]]:
    """The lock's requirements (`name==version ; marker`), each with its hashes."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text("utf-8").replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            requirement, *options = line.split(" --")
            found[requirement.strip()] = options
    return found


def versions(name: str) -> dict[str, set[str]]:
    """Which versions a lock has of each distribution; more than one only where markers tell them apart."""
    found: dict[str, set[str]] = {}
    for line in locked(name):
        requirement = Requirement(line)
        (pin,) = requirement.specifier
        found.setdefault(canonicalize_name(requirement.name), set()).add(pin.version)
    return found


def group(name: str) -> list[str]:
    requirements: list[str] = PROJECT["dependency-groups"][name]
    return requirements


def declared() -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    return [*PROJECT["project"]["dependencies"], *(requirement for extra in extras for requirement in extra)]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_every_requirement_and_names_its_hashes(name):
    requirements = locked(name)

    assert requirements
    for requirement, options in requirements.items():
        assert re.match(r"[\w.-]+==[\w.!+-]+( ;|$)", requirement), requirement
        assert options, f"{requirement} has no hash"
        assert all(re.fullmatch(r"hash=sha256:[0-9a-f]{64}", option.strip()) for option in options), requirement


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_names_no_index(name):
    text = (ROOT / name).read_text("utf-8")

    assert "://" not in text
    assert not re.search(r"^\s*(--|-i|-f)", re.sub(r"\s--hash=\S+", "", text), re.MULTILINE)


@pytest.mark.parametrize(
    ("requirement", "lock"),
    [
        *((requirement, "requirements.lock") for requirement in declared()),
        *((requirement, "requirements-build.lock") for requirement in group("build")),
        *((requirement, "requirements-image.lock") for requirement in group("image")),
        *((requirement, "requirements-dev.lock") for requirement in [*declared(), *group("dev"), *group("build")]),
    ],
)
def test_what_the_project_declares_is_locked_within_its_bounds(requirement, lock):
    wanted = Requirement(requirement)
    have = versions(lock).get(canonicalize_name(wanted.name))

    assert have, f"{wanted.name} is not in {lock}: make lock"
    assert all(wanted.specifier.contains(version) for version in have), f"{lock} has {have}: make lock"


def test_tests_run_with_the_versions_that_are_shipped():
    tested = versions("requirements-dev.lock")

    for name in ("requirements.lock", "requirements-build.lock"):
        assert versions(name).items() <= tested.items()


def test_the_image_builds_with_what_pyproject_asks_for():
    assert set(PROJECT["build-system"]["requires"]) <= set(group("build"))


def test_every_third_party_import_is_declared():
    ours = {canonicalize_name(Requirement(requirement).name) for requirement in declared()}
    beside = {
        file.stem for file in (ROOT / "app/callgate/parsers").glob("*.py")
    }  # the launcher of commands has them on its path
    distributions = packages_distributions()
    undeclared: dict[str, str] = {}

    for file in (ROOT / "app").rglob("*.py"):
        for module in imported(file) - sys.stdlib_module_names - {"callgate"} - beside:
            names = {canonicalize_name(name) for name in distributions.get(module, [module])}
            if not ours & {COMES_WITH.get(name, name) for name in names}:
                undeclared[module] = str(file.relative_to(ROOT))

    assert undeclared == {}


def imported(file: Path) -> set[str]:
    """The top-level names of the modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone: git names the files of the program")
def test_the_wheel_holds_all_of_the_program_and_nothing_else(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("callgate-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (entry_points,) = (archive.read(name).decode() for name in held if name.endswith("/entry_points.txt"))

    program = {str(file.relative_to(ROOT / "app")) for file in files_of_the_program()}
    assert {"callgate/config/default.yaml", "callgate/__init__.py"} <= program
    assert {name for name in held if ".dist-info/" not in name} == program
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in held)
    assert "callgate = callgate.__main__:main" in entry_points


def files_of_the_program() -> list[Path]:
    """What git has or would take of `app/`: no bytecode, no caches."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "app"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: the word and what follows, on one line."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)]


def of(word: str) -> list[str]:
    return [rest for each, rest in instructions() if each == word]


def test_the_image_runs_as_a_number_that_is_not_root():
    user = of("USER")[-1]

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_the_image_starts_stops_and_is_checked_without_a_shell():
    (entry,) = of("ENTRYPOINT")
    (command,) = of("CMD")
    (check,) = of("HEALTHCHECK")

    assert json.loads(entry) == ["callgate"]
    assert json.loads(command) == ["serve"]
    assert json.loads(check.partition("CMD ")[2]) == ["callgate", "health"]
    assert of("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_is_made_of_locked_packages_and_of_nothing_fetched_besides():
    steps = [part for rest in of("RUN") for part in rest.split("&&")]
    installs = [shlex.split(step) for step in steps if re.search(r"pip\b.* install ", step)]

    assert of("ADD") == []
    assert installs
    assert all({"--require-hashes", "--no-index"} & set(words) for words in installs)
    assert not any(re.search(r"\b(curl|wget|https?:)", step) for step in steps)


def test_what_the_image_copies_is_let_through_by_dockerignore():
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[:1] == "!"}
    copies = [shlex.split(rest) for rest in of("COPY") if not rest.startswith("--from")]
    sources = {source for *each, _ in copies for source in each}

    assert sources == let_through
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_sets_no_switch_that_hides_output_or_throws_bytecode_away():
    settings = dict(each.split("=", 1) for rest in of("ENV") for each in shlex.split(rest))

    assert settings["PYTHONUNBUFFERED"] == "1"
    assert settings["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert "PYTHONDONTWRITEBYTECODE" not in settings


@pytest.fixture
def service() -> dict[str, Any]:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    service: dict[str, Any] = compose["services"]["callgate"]
    return service


def test_compose_gives_the_container_nothing_it_does_not_need(service):
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert service["healthcheck"]["test"] == ["CMD", "callgate", "health"]
    assert not service.get("privileged")


def test_compose_asks_for_a_key_makes_the_first_and_publishes_to_this_machine_alone(service):
    config = load(ROOT / "deploy" / "config.yaml", environ={}).config

    assert config.auth.mode == "keys"
    assert service["command"] == ["serve", "--create-key"]
    assert config.data_dir in {volume.partition(":")[2] for volume in service["volumes"]}
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_compose_waits_longer_than_open_streams_may_take_to_end(service):
    config = load(ROOT / "deploy" / "config.yaml", environ={}).config

    assert float(service["stop_grace_period"].removesuffix("s")) > config.server.drain_seconds


def test_make_alone_lists_every_chore():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)

    listed = subprocess.run(["make", "-s"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    for chore in phony.split():
        assert re.search(rf"^  make {chore} +\S", listed, re.MULTILINE), chore


def test_an_environment_that_is_another_checkouts_is_neither_emptied_nor_installed_into(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    (theirs / "kept").touch()
    (ours / ".venv").symlink_to(theirs)
    for name in ("Makefile", "pyproject.toml", *(lock.name for lock in ROOT.glob("*.lock"))):
        shutil.copy(ROOT / name, ours)
    for stamps in ((), (".made",), (".made", ".runtime")):
        for stamp in stamps:
            (theirs / stamp).touch()
        made = subprocess.run(["make", "-s", "check"], cwd=ours, check=False, capture_output=True, text=True)
        assert made.returncode
        assert ".venv is a link" in made.stderr
        assert {it.name for it in theirs.iterdir()} == {"kept", *stamps}


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "docs/security.md", *(f"docs/decisions/{page.name}" for page in DECISIONS)]
)
def test_every_file_that_a_page_for_contributors_names_is_there(page):
    named = re.findall(r"`((?:app|docs|tests|deploy)/[\w./-]+)`", (ROOT / page).read_text("utf-8"))

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_decision_is_dated_listed_and_says_what_why_and_what_else():
    index = (ROOT / "docs/decisions/README.md").read_text("utf-8")

    assert DECISIONS
    for page in DECISIONS:
        text = page.read_text("utf-8")
        assert f"({page.name})" in index
        assert re.match(rf"# {page.name[:4]}\. \S.*\n20\d\d-\d\d-\d\d\n", text), page.name
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["What", "Why", "What else"], page.name


def test_every_cache_is_on_the_list_of_what_is_remembered():
    page = (ROOT / "docs/decisions/0023-what-is-remembered.md").read_text("utf-8")
    caching = re.compile(
        r"^\s*@(?:functools\.)?(?:lru_cache|cache)\b|\bOrderedDict\[|^(?:LONGEST_)?_?REMEMBERED(?!_SECONDS)",
        re.MULTILINE,
    )
    files = [file for file in (ROOT / "app").rglob("*.py") if caching.search(file.read_text("utf-8"))]

    assert len(files) > 8
    assert [name for file in files if (name := str(file.relative_to(ROOT))) not in page] == []
