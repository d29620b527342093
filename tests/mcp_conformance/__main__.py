"""The whole of the official suite against our MCP client: `make mcp-conformance`. Fails for a failure that is not expected, and for an
expected one that does not happen any more."""

import asyncio
import sys

from tests.harness import environment
from tests.harness.environment import MCP_CONFORMANCE, MCP_NODE
from tests.mcp_conformance import suite


def main() -> int:
    if faults := environment.make([MCP_NODE, MCP_CONFORMANCE]):
        sys.stderr.write(f"SKIPPED: the conformance suite cannot be installed: {faults}\n")
        return 0
    return max(_held(revision) for revision in sys.argv[1:] or suite.REVISIONS)


def _held(revision: str) -> int:
    """Run all of a revision, and print what came of it."""
    verdicts = asyncio.run(suite.run(revision))
    expected = suite.expected_failures(revision)
    required = set(suite.required(revision))
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
