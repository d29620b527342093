"""A short run of the official conformance suite. `make mcp-conformance` runs all of it."""

from pathlib import Path

import pytest
import yaml

from tests.harness.environment import MCP_CONFORMANCE, MCP_NODE, Environment
from tests.harness.needs import needs
from tests.mcp_conformance import suite

pytestmark = pytest.mark.anyio

SHORT = {
    "2026-07-28": {"sep-2322-client-request-state": 5, "tools_call": 2, "auth/authorization-server-migration": 15},
    "2025-11-25": {"elicitation-sep1034-client-defaults": 5},
}
"""The scenarios of a short run, and the checks that each has at least."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@needs(f"environment:{MCP_NODE}", f"environment:{MCP_CONFORMANCE}")
@pytest.mark.parametrize("revision", suite.REVISIONS)
async def test_the_suite_passes_what_servers_ask_and_calls(revision: str) -> None:
    wanted = SHORT[revision]
    verdicts = await suite.run(revision, *wanted)
    assert verdicts.failed == {}
    assert verdicts.passed.keys() == wanted.keys()
    assert all(verdicts.passed[name] >= checks for name, checks in wanted.items())


@pytest.mark.parametrize("revision", suite.REVISIONS)
def test_what_may_fail_is_login_and_what_is_named_with_its_reason(revision: str) -> None:
    text = (suite.FOLDER / f"expected-failures-{revision}.yml").read_text(encoding="utf-8")
    expected = yaml.safe_load(text)["client"]
    assert {name for name in expected if not name.startswith("auth/")} <= suite.NOT_LOGIN
    assert len(expected) == len(set(expected))


def test_the_suite_is_pinned() -> None:
    [package, lock] = Environment(MCP_CONFORMANCE).locks
    assert '"@modelcontextprotocol/conformance": "0.2.0-alpha.12"' in Path(package).read_text(encoding="utf-8")
    assert lock.name == "package-lock.json"
