"""The types that the page's comments give its functions."""

import json
import subprocess
from pathlib import Path

import pytest

import callgate
from tests.harness.environment import Environment
from tests.harness.needs import needs

WEB = Path(callgate.__file__).parent / "web"
OPTIONS = {
    "allowJs": True,
    "checkJs": True,
    "noEmit": True,
    "strict": True,
    "noImplicitAny": False,  # what the server answers has no type here
    "skipLibCheck": True,
    "target": "es2024",
    "lib": ["esnext", "dom", "dom.iterable"],
    "module": "es2022",
    "moduleResolution": "bundler",
    "types": [],
}


def complaints(folder: Path, *files: Path) -> list[str]:
    """What the compiler says of these files and all that they import, but for the vendored one."""
    (folder / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": OPTIONS, "files": [str(file) for file in files]})
    )
    tsc = Environment("types").interpreter
    said = subprocess.run(
        [tsc, "--pretty", "false", "-p", folder], capture_output=True, text=True, check=False, timeout=300
    )
    return [line for line in said.stdout.splitlines() if not line.startswith(" ") and "/lit.js(" not in line]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the compiler says of the page and of one file that is wrong: it reads its own types for seconds before it says anything."""
    folder = tmp_path_factory.mktemp("types")
    wrong = folder / "wrong.js"
    wrong.write_text(f'import {{ seconds }} from "{WEB}/format.js";\nseconds("soon");\nseconds(1).nope;\n')
    return complaints(folder, WEB / "app.js", wrong)


@needs("environment:types")
def test_every_type_fits(said: list[str]) -> None:
    assert [line for line in said if "wrong.js(" not in line] == []


@needs("environment:types")
def test_a_type_that_does_not_fit_is_seen(said: list[str]) -> None:
    errors = [line.partition(": ")[2][:12] for line in said if "wrong.js(" in line]
    assert errors == ["error TS2345", "error TS2339"]
