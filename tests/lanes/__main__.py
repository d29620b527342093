"""`python -m tests.lanes [PROVIDER ...]`: the matrix of providers and native cases, one line for each provider.

`python -m tests.lanes exchanges [PROVIDER ...]`: six endings of an answer, streamed and whole, at providers of litellm's lane.

`python -m tests.lanes models`: how many of litellm's models that call tools take which lane.

`python -m tests.lanes attacks [NUMBER [WIRE ...]]`: so many damaged answers on each wire, other ones every time.
"""

import asyncio
import random
import sys

from tests.lanes.attacks import SHAPES, search
from tests.lanes.exchanges import PROVIDERS, exchanges
from tests.lanes.exchanges import report as report_of_exchanges
from tests.lanes.matrix import MODELS, native_cases, play, report
from tests.lanes.models import lanes_of_models


def main(providers: list[str]) -> int:
    figures = asyncio.run(play(native_cases(), providers or MODELS))
    sys.stdout.write("\n".join(report(figures)) + "\n")
    return 1 if any(each.more for each in figures) else 0


def show_exchanges(providers: list[str]) -> int:
    found = asyncio.run(exchanges(providers or PROVIDERS))
    sys.stdout.write("\n".join(report_of_exchanges(found)) + "\n")
    return 1 if any(each.is_wrong for each in found) else 0


def attack(count: int, wires: list[str]) -> int:
    first, wrong = random.randrange(10**9), 0
    for wire in wires or SHAPES:
        figures = search(wire, range(first, first + count))
        wrong += len(figures.wrong)
        sys.stdout.write("\n".join([figures.line(), *figures.wrong]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["attacks"]:
        sys.exit(attack(int((sys.argv[2:3] or ["1000"])[0]), sys.argv[3:]))
    if sys.argv[1:2] == ["models"]:
        sys.stdout.write("\n".join(lanes_of_models().report()) + "\n")
        sys.exit(0)
    if sys.argv[1:2] == ["exchanges"]:
        sys.exit(show_exchanges(sys.argv[2:]))
    sys.exit(main(sys.argv[1:]))
