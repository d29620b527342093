"""`python -m tests.text_answers [-v]`: how many meant calls run and how much talk does, by kind and by language."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence

from tests.text_answers.answers import ASKED, RAN, TEXT, Answer, answers, outcome

Judged = tuple[Answer, str]


def main(arguments: Sequence[str]) -> int:
    judged = [(answer, outcome(answer)) for answer in answers()]
    groups: list[tuple[str, Callable[[Answer], bool]]] = [
        ("meant", lambda answer: answer.is_meant),
        ("meant, formats that look behind", lambda answer: answer.is_meant and answer.looks_behind),
        ("meant, special tokens", lambda answer: answer.is_meant and not answer.looks_behind),
        ("talk, formats that look behind", lambda answer: not answer.is_meant and answer.looks_behind),
        ("talk, special tokens", lambda answer: not answer.is_meant and not answer.looks_behind),
    ]
    _write(f"{'':46}{'answers':>8}{RAN:>14}{ASKED:>14}{TEXT:>14}\n")
    for name, belongs in groups:
        _row(name, [each for each in judged if belongs(each[0])])
    for language in dict.fromkeys(answer.language for answer, _ in judged):
        of_language = [each for each in judged if each[0].language == language]
        _row(f"{language}, meant", [each for each in of_language if each[0].is_meant])
        _row(f"{language}, talk, look behind", [e for e in of_language if not e[0].is_meant and e[0].looks_behind])
    if "-v" in arguments:
        for kind in dict.fromkeys((answer.is_meant, answer.kind) for answer, _ in judged):
            _row(
                f"{'meant' if kind[0] else 'talk'}: {kind[1]}",
                [e for e in judged if (e[0].is_meant, e[0].kind) == kind],
            )
    return 0


def shares(judged: Sequence[Judged]) -> dict[str, float]:
    counts = Counter(result for _, result in judged)
    return {result: counts[result] / max(1, len(judged)) for result in (RAN, ASKED, TEXT)}


def _row(name: str, judged: Sequence[Judged]) -> None:
    of = shares(judged)
    cells = (f"{round(of[result] * len(judged))} ({of[result]:.1%})" for result in (RAN, ASKED, TEXT))
    _write(f"{name:46}{len(judged):>8}" + "".join(f"{cell:>14}" for cell in cells) + "\n")


def _write(line: str) -> None:
    sys.stdout.write(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
