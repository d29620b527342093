"""`python -m tests.peersuite CASES`: holds our readers against cases that other projects test theirs with.

`CASES/<project>/<format>/<name>.json` has a `text` (or the `deltas` of a native stream), `tools`, and in `expect` what
the project makes of it; `CASES/formats.json` names a model for each format. `judgements.json` next to this file, and
`CASES/judgements.json`, if there is one, give single differences a class and a reason. A text is read whole, in single characters and cut at random. A case passes
if nothing differs, judged or not; the last line counts them.
"""

import argparse
import asyncio
import collections
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.peersuite.comparing import CLASSES, Difference, class_of, differences, shape
from tests.peersuite.reading import Case, Family, family_of, pieces_of, read_native, read_streamed, read_whole

JUDGEMENTS = Path(__file__).parent / "judgements.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peersuite")
    parser.add_argument("cases", type=Path)
    parser.add_argument("--only", default="", help="cases with this in their id")
    parser.add_argument("-v", "--verbose", action="store_true", help="lines for each case that differs")
    asked = parser.parse_args(arguments)
    return asyncio.run(_run(asked.cases, asked.only, verbose=asked.verbose))


async def _run(root: Path, only: str, *, verbose: bool) -> int:
    formats = _json_file(root / "formats.json")
    judgements = {**_json_file(root / "judgements.json"), **_json_file(JUDGEMENTS)}
    table: dict[tuple[str, str, str], collections.Counter[str]] = {}
    for case in _cases(root, only):
        is_native = case["kind"] == "native"
        family = family_of(case, formats)
        format = "native" if is_native else family.format
        kind, found = _judged_native(case) if is_native else await _judged_text(case, family)
        if kind and case["id"] in judgements:
            kind = judgements[case["id"]]["class"]
        table.setdefault((case["project"], case["format"], format), collections.Counter())[kind or "passed"] += 1
        if kind and verbose:
            _write(f"{kind:9} {case['id']} [{format}]")
            for name, what in found:
                _write(f"            {name}: {what}")
    return _summary(table)


def _json_file(path: Path) -> Mapping[str, Mapping[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else {}


def _cases(root: Path, only: str) -> Iterator[Case]:
    for path in sorted(root.glob("*/*/*.json")):
        case = json.loads(path.read_text())
        if only in case["id"]:
            yield case


def _judged_native(case: Case) -> tuple[str, list[Difference]]:
    found = differences(case, read_native(case))
    return class_of(found), found


async def _judged_text(case: Case, family: Family) -> tuple[str, list[Difference]]:
    """Whole, then streamed: what differs only when streamed is `streamed`, what differs from cut to cut is `cut`."""
    whole = await read_whole(case, family)
    letters, *others = [await read_streamed(case, family, pieces) for pieces in pieces_of(case)]
    found, streamed = differences(case, whole), differences(case, letters)
    kind = class_of(found) or ("streamed" if class_of(streamed) else "")
    found += [(f"streamed {name}", what) for name, what in streamed if (name, what) not in found]
    if not kind and any(shape(each) != shape(letters) for each in others):
        kind = "cut"
    if not kind and shape(whole) != shape(letters):
        kind = "streamed"
    if any(shape(each) != shape(letters) for each in others):
        found.append(("cut", "what is read depends on where the text is cut"))
    return kind, found


def _summary(table: Mapping[tuple[str, str, str], collections.Counter[str]]) -> int:
    columns = ("total", "passed", *CLASSES)
    _write(f"{'project':14}{'format':20}{'read as':16}" + "".join(f"{name:>9}" for name in columns))
    sums: collections.Counter[str] = collections.Counter()
    for (project, format, reader), counts in sorted(table.items()):
        counts["total"] = counts.total()
        sums += counts
        _write(f"{project:14}{format:20}{reader:16}" + _row(counts, columns))
    _write(f"{'':50}" + _row(sums, columns))
    failed = sums["total"] - sums["passed"]
    _write(f"{sums['passed']} passed, {failed} failed")
    return 1 if failed else 0


def _row(counts: Mapping[str, int], columns: Sequence[str]) -> str:
    return "".join(f"{counts[name] or '':>9}" for name in columns)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
