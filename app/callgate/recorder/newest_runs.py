"""The newest runs, in memory."""

import threading
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from callgate.recorder.ended_run import EndedRun

IN_MEMORY: Final = 200
"""How many runs are kept in memory, with or without a file."""
IN_MEMORY_BYTES: Final = 32 * 1024 * 1024
"""The limit of their events and texts in memory. Beyond it the oldest runs are dropped from memory."""
PRIVATE_BYTES: Final = 16 * 1024 * 1024
"""The limit of the texts among them that are kept in memory alone. Beyond it the oldest of these texts are dropped, and not their runs."""
OF_ONE: Final = 2
"""The part of them that may be one owner's is one in so many, so that nobody pushes out all of the others'."""


class NewestRuns:
    """Keeps as many of the newest runs as fit. Thread-safe."""

    def __init__(self) -> None:
        self._runs: deque[EndedRun] = deque()
        self._bytes = 0
        self._private_bytes: Counter[str] = Counter()
        """Of the private texts of each owner."""
        self._lock = threading.Lock()

    def add(self, runs: Iterable[EndedRun]) -> None:
        with self._lock:
            for run in runs:
                self._runs.append(run)
                self._weigh(run, 1)
            if self._has_too_many_private_texts():
                self._drop_private_texts()
            while len(self._runs) > IN_MEMORY or self._bytes > IN_MEMORY_BYTES:
                self._weigh(self._runs.popleft(), -1)

    def _weigh(self, run: EndedRun, sign: int) -> None:
        """Count a run that comes, or with a negative sign one that goes."""
        self._bytes += sign * run.weight()
        if run.private is not None and not run.private.is_dropped:
            self._private_bytes[run.private_to] += sign * run.private.weight()

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
            run = self._runs[place]
            if run.private is None or run.private.is_dropped:
                continue
            weight = run.private.weight()
            if all_bytes + weight > PRIVATE_BYTES or bytes_of[run.private_to] + weight > PRIVATE_BYTES // OF_ONE:
                self._runs[place] = run.without_private_texts()
            else:
                all_bytes += weight
                bytes_of[run.private_to] += weight
        self._private_bytes = bytes_of
        self._bytes = sum(run.weight() for run in self._runs)

    def all(self) -> list[EndedRun]:
        with self._lock:
            return list(self._runs)

    def get(self, id: str) -> EndedRun | None:
        return next((run for run in self.all() if run.id == id), None)

    def remove(self, id: str) -> bool:
        """Remove a run; False if there is none with this id."""
        with self._lock:
            run = next((run for run in self._runs if run.id == id), None)
            if run is not None:
                self._runs.remove(run)
                self._weigh(run, -1)
        return run is not None
