"""`python -m tests.corpus [DIR ...]`: one line for each case that fails, then how many passed and failed."""

import sys
import traceback
from pathlib import Path

from tests.corpus.judge import Case, cases, verdict


def main(arguments: list[str]) -> int:
    passed = failed = 0
    for case in cases(*map(Path, arguments)):
        differences = _judged(case)
        if differences:
            failed += 1
            _say(f"{case.id}: {'; '.join(differences)}")
        else:
            passed += 1
    _say(f"{passed} passed, {failed} failed")
    # No case at all is a wrong directory, and not a success.
    return 0 if passed and not failed else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _judged(case: Case) -> list[str]:
    try:
        return verdict(case)
    except Exception as error:  # noqa: BLE001 a case that crashes is one that fails, and the others are judged all the same
        place = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
