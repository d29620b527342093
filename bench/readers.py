"""What reading calls out of text costs: `python bench/readers.py [characters]`.

Every format reads hostile texts (nothing but openings, brackets, quotes, fences, …) in one piece and in pieces of a few
characters. Twice the text may take at most two and a half times as long, or the exit code says so. CPU time is
measured, so that a busy machine does not fail it.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "app"), str(Path(__file__).parents[1])]

from callgate.text_calls.reader import FORMATS
from tests.text_calls.reading import FLOODS, cpu_seconds, flood

SIZE = 100_000
STEP = 4
"""Characters in a delta of a model that streams token by token."""
LARGEST_RATIO = 2.5
LEAST_SECONDS = 0.02
"""Below this a ratio says more about the machine than about the reader."""


def main(size: int) -> int:
    too_slow = 0
    sys.stdout.write(f"{'format':16} {'µs per char':>12} {'in deltas':>10} {'worst ratio':>12}  hardest text\n")
    for format in sorted(FORMATS):
        whole, _, _ = _hardest(format, size, step=2 * size)
        deltas, ratio, kind = _hardest(format, size, step=STEP)
        too_slow += ratio > LARGEST_RATIO
        sys.stdout.write(f"{format:16} {whole * 1e6:12.2f} {deltas * 1e6:10.2f} {ratio:12.2f}  {kind}\n")
    return 1 if too_slow else 0


def _hardest(format: str, size: int, step: int) -> tuple[float, float, str]:
    """Seconds per character of the slowest text, the largest ratio of all texts, and the slowest text."""
    seconds, ratio, hardest = 0.0, 0.0, ""
    for kind in FLOODS:
        once, twice = _both(format, kind, size, step, tries=1)
        if twice > LARGEST_RATIO * once:
            once, twice = _both(format, kind, size, step, tries=3)
        if twice > LEAST_SECONDS:
            ratio = max(ratio, twice / once)
        if twice / (2 * size) > seconds:
            seconds, hardest = twice / (2 * size), kind
    return seconds, ratio, hardest


def _both(format: str, kind: str, size: int, step: int, tries: int) -> tuple[float, float]:
    return (
        cpu_seconds(format, flood(kind, size), step, tries),
        cpu_seconds(format, flood(kind, 2 * size), step, tries),
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else SIZE))
