"""Which module imports how many others. Who may import whom at all is import-linter's, in `pyproject.toml`."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.harness.process import child_environment

APP = Path(__file__).parent.parent / "app"
MOST = 27
"""Modules of ours that one of ours imports. What needs more knows too many things."""


def test_no_module_imports_more_than_twenty_five_others():
    fan_out = {str(file.relative_to(APP)): len(imported(file)) for file in APP.rglob("*.py")}
    assert len(fan_out) > 200
    assert {module: count for module, count in fan_out.items() if count > MOST} == {}


def imported(file: Path) -> set[str]:
    """Modules of ours, wherever in the file they are imported."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if is_module(inner) else node.module)
    return {name for name in found if name.partition(".")[0] == "callgate"}


def is_module(name: str) -> bool:
    path = APP.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_serving_without_redis_and_postgres_loads_no_driver_of_either():
    script = (
        "import sys; from callgate.application import create_app; from callgate.config.load import load; "
        "create_app(load(None).config); print(sorted(sys.modules.keys() & {'asyncpg', 'redis', 'celery', 'psycopg'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=child_environment(), check=True
    )
    assert done.stdout == "[]\n"
