"""`python -m tests.parameters`: walks, and writes `docs/parameters.md`; with `declared` it reads the SDKs first."""

import asyncio
import subprocess
import sys

import structlog

from tests.harness.environment import Environment
from tests.parameters import declared, places, table
from tests.parameters.walk import outcomes, walking


def read_sdks() -> None:
    for sdk, environment in places.SDKS.items():
        command = [str(Environment(environment).interpreter), declared.__file__, sdk]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        (places.DECLARED / f"{sdk}.json").write_text(text)


async def write() -> int:
    async with walking() as walker:
        seen = await outcomes(walker)
    table.PAGE.write_text(table.page(seen))
    sys.stdout.write("\n".join([*table.gaps(seen), f"{len(table.gaps(seen))} gaps\n"]))
    return 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if sys.argv[1:] == ["declared"]:
        read_sdks()
    sys.exit(asyncio.run(write()))
