"""The whole of the official suite against our MCP client, and against `/mcp`: `make mcp-conformance`. Fails for a failure that is not
expected, and for an expected one that does not happen any more."""

import asyncio
import sys

from tests.harness import environment
from tests.harness.environment import MCP_CONFORMANCE, MCP_NODE
from tests.mcp_conformance import server_suite, suite


def main() -> int:
    if faults := environment.make([MCP_NODE, MCP_CONFORMANCE]):
        sys.stderr.write(f"SKIPPED: the conformance suite cannot be installed: {faults}\n")
        return 0
    revisions = sys.argv[1:] or suite.REVISIONS
    return max(max(_held(revision), _held_as_server(revision)) for revision in revisions)


def _held(revision: str) -> int:
    """Run all of a revision against our client."""
    verdicts = asyncio.run(suite.run(revision))
    return _told(f"{revision} as client", verdicts, suite.expected_failures(revision), set(suite.required(revision)))


def _held_as_server(revision: str) -> int:
    """Run all of a revision against `/mcp`."""
    verdicts = asyncio.run(server_suite.run(revision))
    required = set(server_suite.required(revision))
    failures = {name.partition(":")[0] for name in verdicts.failures()}
    broken = server_suite.MUST_PASS[revision] & failures
    sys.stdout.writelines(f"  is served, and fails: {name}\n" for name in sorted(broken))
    result = _told(f"{revision} as server", verdicts, server_suite.expected_failures(revision), required)
    return 1 if broken else result


def _told(revision: str, verdicts: suite.Verdicts, expected: set[str], required: set[str]) -> int:
    """Print what came of a run."""
    for scenario in sorted(verdicts.passed):
        bad = verdicts.failed.get(scenario, [])
        total = verdicts.passed[scenario] + len(bad)
        mark = "required" if scenario in required else "not scored"
        sys.stdout.write(f"{scenario:44} {verdicts.passed[scenario]:3} of {total:3}  {mark}  {', '.join(bad)}\n")
    unexpected = {name for name in verdicts.failures() if not suite.is_expected(name, expected)}
    stale = {name for name in expected if not any(suite.is_expected(bad, {name}) for bad in verdicts.failures())}
    passed = sum(verdicts.passed.values())
    failed = sum(map(len, verdicts.failed.values()))
    whole = required - verdicts.failed.keys()
    sys.stdout.write(
        f"{revision}: {len(whole)} of {len(required)} required scenarios whole; {passed} of {passed + failed} checks\n"
    )
    sys.stdout.writelines(f"  failed, and was not expected to: {name}\n" for name in sorted(unexpected))
    sys.stdout.writelines(
        f"  is expected to fail, and does not: take it out of the file: {name}\n" for name in sorted(stale)
    )
    missing = required - verdicts.passed.keys()
    sys.stdout.writelines(f"  did not run: {name}\n" for name in sorted(missing))
    return 1 if unexpected or stale or missing else 0


if __name__ == "__main__":
    sys.exit(main())
