"""`python -m tests.walk`: the figures of all walks; with a name, that walk; with `json`, the figures for a test, of all
or of those that are named."""

import asyncio
import json
import sys

import structlog

from tests.walk import CASES, GOALS, Walk, walk

COLUMN = 42


def main(arguments: list[str]) -> int:
    # What requests log is no part of what is printed.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    match arguments:
        case ["json", *names]:
            figures = {name: asyncio.run(walk(CASES[name])).figures() for name in names or CASES}
            sys.stdout.write(json.dumps(figures))
        case []:
            for name, case in CASES.items():
                say(figures_line(name, asyncio.run(walk(case))))
        case [name] if name in CASES:
            print_walk(name, asyncio.run(walk(CASES[name])))
        case _:
            sys.stderr.write(f"{__doc__}\nThe walks: {', '.join(CASES)}\n")
            return 2
    return 0


def print_walk(name: str, followed: Walk) -> None:
    for visit in followed.visits:
        say(f"{visit.module:{COLUMN}} {', '.join(visit.functions)}")
    say(f"\n{figures_line(name, followed)}")


def figures_line(name: str, followed: Walk) -> str:
    modules, crossings = followed.figures()
    line = f"{name:{COLUMN}} {modules} modules, {crossings} crossings"
    if name in GOALS:
        goal_modules, goal_crossings = GOALS[name]
        line += f" (goal: {goal_modules}, {goal_crossings})"
    return line


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
