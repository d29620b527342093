"""What gathering and reading arguments costs: `python bench/arguments.py`.

Arguments of growing size come in deltas of four bytes and are settled at the end of the turn. The time per byte must not
grow with the size: 10 MB may take at most twelve times as long as 1 MB, or the exit code says so. CPU time is measured,
so that a busy machine does not fail it.
"""

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "app"), str(Path(__file__).resolve().parent.parent)]

from callgate.calls.buffer import ToolCallBuffer
from callgate.calls.offer import OfferedTool
from callgate.calls.states import ReadyCall
from callgate.conversation.events import CallDelta
from callgate.conversation.turn import TurnBuilder

KB, MB = 1_000, 1_000_000
SIZES = {"1 KB": KB, "100 KB": 100 * KB, "1 MB": MB, "10 MB": 10 * MB}
DELTA = 4
BATCH = 16
"""Deltas that one read from a socket brings, more or less."""
BAR = 12.0
"""Times the 1 MB figure that 10 MB may take: ten for the size, and some for caches."""
OFFER = {"write_file": OfferedTool("write_file", {"type": "object", "properties": {"content": {"type": "string"}}})}


def main() -> int:
    failed = False
    for shape, make in {"one string": one_string, "many rows": many_rows}.items():
        for named in (False, True):
            what = f"{shape}, {'name on every delta' if named else 'plain deltas'}"
            took = {label: settle_time(make(size), named=named) for label, size in SIZES.items()}
            for label, size in SIZES.items():
                print(f"{what:38} {label:>7}: {took[label] / size * 1e9:7.1f} ns/byte  {took[label] * 1e3:9.2f} ms")
            ratio = took["10 MB"] / took["1 MB"]
            failed |= ratio > BAR
            print(f"{what:38} 10 MB : 1 MB = {ratio:.1f} (at most {BAR:g})")
    for label, cost in buffer_costs().items():
        print(f"ToolCallBuffer.{label:35} {cost * 1e6:8.2f} us")
    return 1 if failed else 0


def one_string(size: int) -> str:
    line = 'def f(x):\n    return "%s" + x  # {brace} [bracket]: caf\u00e9\n'
    return json.dumps({"path": "a/b.py", "content": line * max(1, size // len(json.dumps(line)))})


def many_rows(size: int) -> str:
    rows: list[str] = []
    length = 0
    for number in itertools.count():
        if length >= size - 16:
            return f'{{"rows":[{",".join(rows)}]}}'
        rows.append(f'{{"id":{number},"name":"{"n" * 330}{number}","ok":true,"tags":["a","b"]}}')
        length += len(rows[-1]) + 1
    raise AssertionError


def settle_time(text: str, *, named: bool) -> float:
    """CPU seconds from the first delta to the settled call. The best of some, because a collection of garbage
    elsewhere is not ours."""
    return min(_settle_once(text, named=named) for _ in range(3 if len(text) >= MB else 20))


def _settle_once(text: str, *, named: bool) -> float:
    gc.collect()
    building = TurnBuilder(offer=OFFER, ids=map("made_{}".format, itertools.count()).__next__)
    began = time.process_time()
    building.feed([CallDelta(0, "call_1", "write_file")])
    for batch in _batches(text, "write_file" if named else None):
        building.feed(batch)
    turn = building.finish()
    took = time.process_time() - began
    assert isinstance(turn.calls[0], ReadyCall), turn.calls
    return took


def _batches(text: str, name: str | None) -> Iterator[list[CallDelta]]:
    for start in range(0, len(text), DELTA * BATCH):
        end = min(start + DELTA * BATCH, len(text))
        yield [CallDelta(0, None, name, text[at : at + DELTA]) for at in range(start, end, DELTA)]


def buffer_costs() -> dict[str, float]:
    small = '{"query": "python async", "limit": 10}'
    full = ToolCallBuffer()
    for number in range(10):
        full.add_tool_call(f"call_{number}", "search", small)
    return {
        "add_tool_call": _each(lambda: ToolCallBuffer().add_tool_call("c", "search", small)),
        "add_tool_call + parse_arguments": _each(lambda: _parse(small)),
        "add_tool_call + parse_arguments, cut": _each(lambda: _is_cut(small[:-1])),
        "get_all_complete_tool_calls of ten": _each(full.get_all_complete_tool_calls),
    }


def _parse(text: str) -> None:
    buffer = ToolCallBuffer()
    buffer.add_tool_call("c", "search", text)
    buffer.parse_arguments("c")


def _is_cut(text: str) -> None:
    buffer = ToolCallBuffer()
    buffer.add_tool_call("c", "search", text)
    assert not buffer.is_complete("c")


def _each(work: Callable[[], object], times: int = 20_000) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


if __name__ == "__main__":
    sys.exit(main())
