"""A short run of the official conformance suite against `/mcp`. `make mcp-conformance` runs all of it."""

import pytest

from tests.harness.environment import MCP_CONFORMANCE, MCP_NODE
from tests.harness.needs import needs
from tests.mcp_conformance import server_suite, suite

pytestmark = pytest.mark.anyio

SHORT = {
    "2026-07-28": {"server-stateless": 27, "input-required-result-multi-round": 3},
}
"""The scenarios of a short run, and the checks that each passes at least."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@needs(f"environment:{MCP_NODE}", f"environment:{MCP_CONFORMANCE}")
@pytest.mark.parametrize("revision", SHORT)
async def test_the_suite_passes_what_is_served(revision: str) -> None:
    wanted = SHORT[revision]
    verdicts = await server_suite.run(revision, *wanted)
    expected = server_suite.expected_failures(revision)
    assert {name for name in verdicts.failures() if not suite.is_expected(name, expected)} == set()
    assert verdicts.passed.keys() == wanted.keys()
    assert all(verdicts.passed[name] >= checks for name, checks in wanted.items())


@pytest.mark.parametrize("revision", suite.REVISIONS)
def test_nothing_that_is_served_is_expected_to_fail(revision: str) -> None:
    expected = {name.partition(":")[0] for name in server_suite.expected_failures(revision)}
    assert expected.isdisjoint(server_suite.MUST_PASS[revision])
