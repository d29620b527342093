"""The newest runs, in memory."""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import msgspec

from callgate.recorder.ended_run import EndedRun

IN_MEMORY: Final = 200
"""How many runs are kept in memory, with or without a file."""
IN_MEMORY_BYTES: Final = 32 * 1024 * 1024
"""The limit of their events and texts in memory. Beyond it the oldest runs are dropped from memory."""
PRIVATE_BYTES: Final = 16 * 1024 * 1024
"""The limit of the texts among them that are kept in memory alone. Beyond it the oldest of these texts are dropped, and not their runs."""
OF_ONE: Final = 2
"""The part of them that may be one owner's is one in so many, so that nobody pushes out all of the others'."""


class _Weighed(msgspec.Struct, frozen=True, gc=False):
    """A run and its weight, which is counted once."""

    run: EndedRun
    bytes: int
    private_bytes: int
    """Of its texts that are kept in memory alone."""


class NewestRuns:
    """Keeps as many of the newest runs as fit. Thread-safe."""

    def __init__(self) -> None:
        self._runs: deque[_Weighed] = deque()
        self._bytes = 0
        self._private_bytes: Counter[str] = Counter()
        """Of the private texts of each owner."""
        self._lock = threading.Lock()

    def add(self, runs: Sequence[EndedRun]) -> None:
        with self._lock:
            for run in runs[-IN_MEMORY:]:
                private_bytes = 0
                if run.private is not None and not run.private.is_dropped:
                    private_bytes = run.private.weight()
                    self._private_bytes[run.private_to] += private_bytes
                weighed = _Weighed(run, run.weight(), private_bytes)
                self._bytes += weighed.bytes
                self._runs.append(weighed)
            if self._has_too_many_private_texts():
                self._drop_private_texts()
            while len(self._runs) > IN_MEMORY or self._bytes > IN_MEMORY_BYTES:
                self._subtract(self._runs.popleft())

    def _subtract(self, weighed: _Weighed) -> None:
        """Count a run no longer."""
        self._bytes -= weighed.bytes
        if weighed.private_bytes:
            owner = weighed.run.private_to
            self._private_bytes[owner] -= weighed.private_bytes
            if not self._private_bytes[owner]:
                del self._private_bytes[owner]

    def _has_too_many_private_texts(self) -> bool:
        if not self._private_bytes:
            return False
        if max(self._private_bytes.values()) > PRIVATE_BYTES // OF_ONE:
            return True
        return self._private_bytes.total() > PRIVATE_BYTES

    def _drop_private_texts(self) -> None:
        """Drop the oldest private texts beyond their share. The runs stay: whose texts they were may not be who else looks at them."""
        all_bytes = 0
        bytes_of: Counter[str] = Counter()
        for place in reversed(range(len(self._runs))):
            run = self._runs[place].run
            weight = self._runs[place].private_bytes
            if not weight:
                continue
            if all_bytes + weight > PRIVATE_BYTES or bytes_of[run.private_to] + weight > PRIVATE_BYTES // OF_ONE:
                without = run.without_private_texts()
                self._runs[place] = _Weighed(without, without.weight(), 0)
            else:
                all_bytes += weight
                bytes_of[run.private_to] += weight
        self._private_bytes = bytes_of
        self._bytes = sum(weighed.bytes for weighed in self._runs)

    def all(self) -> list[EndedRun]:
        with self._lock:
            return [weighed.run for weighed in self._runs]

    def get(self, id: str) -> EndedRun | None:
        return next((run for run in self.all() if run.id == id), None)

    def remove(self, id: str) -> bool:
        """Remove a run; False if there is none with this id."""
        with self._lock:
            weighed = next((weighed for weighed in self._runs if weighed.run.id == id), None)
            if weighed is not None:
                self._runs.remove(weighed)
                self._subtract(weighed)
        return weighed is not None
