"""`python -m tests.lanes [PROVIDER ...]`: the matrix of providers and native cases, one line for each provider."""

import asyncio
import sys

from tests.lanes.matrix import MODELS, native_cases, play, report


def main(providers: list[str]) -> int:
    figures = asyncio.run(play(native_cases(), providers or MODELS))
    sys.stdout.write("\n".join(report(figures)) + "\n")
    return 1 if any(each.more for each in figures) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
