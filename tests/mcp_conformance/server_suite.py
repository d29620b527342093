"""Runs the official conformance suite of MCP against Callgate as a server."""

import asyncio
import os
import re
import tempfile
from pathlib import Path
from typing import Final

import yaml

from tests.harness.environment import ROOT
from tests.mcp_conformance import suite
from tests.mcp_conformance.served import serve_tools

MUST_PASS: Final = {
    "2026-07-28": frozenset(
        {
            *(
                "tools-list",
                "tools-call-simple-text",
                "tools-call-image",
                "tools-call-audio",
                "tools-call-embedded-resource",
            ),
            *(
                "tools-call-mixed-content",
                "tools-call-error",
                "tools-call-with-progress",
                "server-sse-multiple-streams",
            ),
            *("dns-rebinding-protection", "caching", "http-header-validation", "resources-list", "prompts-list"),
            *("sep-2164-resource-not-found", "input-required-result-basic-elicitation"),
            *("input-required-result-request-state", "input-required-result-multi-round"),
            *("input-required-result-missing-input-response", "input-required-result-result-type"),
            *("input-required-result-unsupported-methods", "input-required-result-tampered-state"),
            *("input-required-result-ignore-extra-params", "input-required-result-validate-input"),
        }
    ),
    "2025-11-25": frozenset(
        {
            *(
                "server-initialize",
                "ping",
                "tools-list",
                "tools-call-simple-text",
                "tools-call-image",
                "tools-call-audio",
            ),
            *(
                "tools-call-embedded-resource",
                "tools-call-mixed-content",
                "tools-call-error",
                "tools-call-with-progress",
            ),
            *("dns-rebinding-protection", "resources-list", "prompts-list"),
        }
    ),
}
"""The scenarios of what is served. Of `server-stateless` alone two checks fail, which want sampling."""


def expected_failures(revision: str) -> set[str]:
    """The scenarios, and checks of scenarios, that may fail, with the reason beside each."""
    file = suite.FOLDER / f"expected-failures-server-{revision}.yml"
    return set(yaml.safe_load(file.read_text(encoding="utf-8"))["server"])


def required(revision: str) -> list[str]:
    """The server scenarios that a revision requires, as the suite has frozen them."""
    import subprocess

    listing = subprocess.run(
        [*suite.program(), "list", "--requirements", revision], capture_output=True, text=True, check=True
    )
    listed = listing.stdout.partition("Server scenarios")[2].partition("Client scenarios")[0]
    return re.findall(r"^  - (\S+)$", listed, re.MULTILINE)


async def run(revision: str, *scenarios: str) -> suite.Verdicts:
    """Run these scenarios, or all that the revision requires and knows."""
    async with serve_tools() as url:
        with tempfile.TemporaryDirectory() as folder:
            if not scenarios:
                await _run(url, folder, "--requirements", revision)
            for scenario in scenarios:
                await _run(url, folder, "--scenario", scenario, "--spec-version", revision)
            return suite.read(Path(folder))


async def _run(url: str, folder: str, *options: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *suite.program(),
        *("server", "--url", url, *options, "-o", folder),
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(suite.SUITE_SECONDS):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
