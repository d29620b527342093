"""Runs the official conformance suite of MCP against our client, and compares what failed with what may."""

import asyncio
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tests.harness.environment import MCP_CONFORMANCE, ROOT, Environment

FOLDER: Final = Path(__file__).parent
REVISIONS: Final = ("2026-07-28", "2025-11-25")
SCENARIO_MILLISECONDS: Final = 600_000
SUITE_SECONDS: Final = 900.0
NOT_LOGIN: Final = frozenset({"http-custom-headers:sep-2243-client-omit-null", "json-schema-2020-12-preservation"})
"""What may fail beside the login by OAuth, which is not done here. The list may only become shorter."""
_FAILED: Final = frozenset({"FAILURE"})


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a run of the suite said: its checks by scenario, and which of them failed."""

    passed: dict[str, int]
    failed: dict[str, list[str]]

    def failures(self) -> set[str]:
        """The failures as the file of expected ones names them."""
        return {f"{scenario}:{check}" for scenario, checks in self.failed.items() for check in checks}


def expected_failures(revision: str) -> set[str]:
    """The scenarios, and checks of scenarios, that may fail, with the reason beside each."""
    file = FOLDER / f"expected-failures-{revision}.yml"
    return set(yaml.safe_load(file.read_text(encoding="utf-8"))["client"])


def is_expected(failure: str, expected: set[str]) -> bool:
    return failure in expected or failure.partition(":")[0] in expected


def required(revision: str) -> list[str]:
    """The client scenarios that a revision requires, as the suite has frozen them."""
    import subprocess

    said = subprocess.run([*program(), "list", "--requirements", revision], capture_output=True, text=True, check=True)
    listed = said.stdout.partition("Client scenarios")[2].partition("never scored")[0]
    return re.findall(r"^  - (\S+)$", listed, re.MULTILINE)


async def run(revision: str, *scenarios: str) -> Verdicts:
    """Run these scenarios, or all that the revision requires and knows."""
    with tempfile.TemporaryDirectory() as folder:
        if not scenarios:
            await _run(folder, "--requirements", revision)
        for scenario in scenarios:
            await _run(folder, "--scenario", scenario, "--spec-version", revision)
        return read(Path(folder))


async def _run(folder: str, *options: str) -> None:
    driver = f"{sys.executable} -m tests.mcp_conformance.in_turn"
    words = ["client", "--command", driver, "--timeout", str(SCENARIO_MILLISECONDS), *options, "-o", folder]
    process = await asyncio.create_subprocess_exec(
        *program(),
        *words,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'app'}:{ROOT}", "NO_COLOR": "1"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(SUITE_SECONDS):
            await process.wait()  # its exit code says whether all passed, which we read of what it wrote
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def program() -> list[str]:
    environment = Environment(MCP_CONFORMANCE)
    program = environment.folder / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return [str(environment.interpreter), str(program)]


def read(folder: Path) -> Verdicts:
    passed: dict[str, int] = {}
    failed: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("checks.json")):
        scenario = _scenario_of(file.parent, folder)
        checks = json.loads(file.read_text(encoding="utf-8"))
        passed[scenario] = sum(check["status"] == "SUCCESS" for check in checks)
        if bad := [check["id"] for check in checks if check["status"] in _FAILED]:
            failed[scenario] = bad
    return Verdicts(passed, failed)


def _scenario_of(place: Path, folder: Path) -> str:
    """The scenario of a folder of results, whose name ends with the time."""
    name = str(place.relative_to(folder))
    return re.sub(r"^(client/)?client-|^client/|^server-|-\d{4}-\d{2}-\d{2}T.*$", "", name)
