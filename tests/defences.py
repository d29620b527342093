"""Takes one defence at a time out of a copy of the tree, and prints those whose test does not fail then.

    python -m tests.defences [WORDS…]

The table is `tests/defences.toml`: each row has what it defends against, the file, the text that is taken out and what stands there
instead, and the test that has to fail. WORDS choose the rows whose `against` holds one of them. A row takes some seconds.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tests" / "defences.toml"
SECONDS = 300.0
"""How long the tests of one row may take: without its defence something may wait for ever."""
FAILED = re.compile(r"^FAILED ", re.MULTILINE)
NOT_COPIED = (".venv", ".git", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache", "build", "dist", "__pycache__")


class Defence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table."""

    against: str
    file: str
    """Below the root of the tree."""
    text: str
    """What is taken out. It stands in the file once."""
    test: str
    """`file::function`."""
    instead: str = ""

    @property
    def test_file(self) -> Path:
        return ROOT / self.test.partition("::")[0]

    @property
    def test_name(self) -> str:
        return self.test.partition("::")[2].partition("[")[0]


def defences(words: Sequence[str] = ()) -> list[Defence]:
    rows = msgspec.convert(tomllib.loads(TABLE.read_text()), dict[str, list[Defence]])["defence"]
    return [row for row in rows if not words or any(word in row.against for word in words)]


def verdict(row: Defence, tree: Path) -> str:
    """Take a defence out of a copy of the tree, run its test there, and say how that ended: `failed` is as it should be."""
    file = tree / row.file
    before = file.read_text()
    file.write_text(before.replace(row.text, row.instead))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-pno:cacheprovider", row.test]
    environment = {**os.environ, "PYTHONPATH": str(tree / "app"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "waited for ever"
    finally:
        file.write_text(before)
    if ran.returncode == 1 and FAILED.search(ran.stdout):
        return "failed"
    if ran.returncode == 0:
        return "PASSED"
    return f"BROKE ({ran.returncode}): {ran.stdout.strip().rpartition(chr(10))[2]}"


def main(*words: str) -> int:
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        for row in defences(words):
            how = verdict(row, tree)
            unnoticed += how not in ("failed", "waited for ever")
            print(f"{how:8} {row.against}  ({row.test})", flush=True)
    print(f"{unnoticed} of {len(defences(words))} would go unnoticed")
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
