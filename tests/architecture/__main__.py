"""`python -m tests.architecture`: writes the tables of `ARCHITECTURE.md`; with `walks`, draws the walks."""

import asyncio
import sys

import structlog

from tests.architecture import PAGE, page_as_it_should_be
from tests.architecture.picture import PICTURES, draw
from tests.walk import CASES, walk


def main(arguments: list[str]) -> None:
    if arguments == ["walks"]:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
        for name, file in PICTURES.items():
            file.write_text(draw(asyncio.run(walk(CASES[name]))), "utf-8")
    else:
        PAGE.write_text(page_as_it_should_be(), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
