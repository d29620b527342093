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
        self._runs: deque[EndedRun] = deque(maxlen=IN_MEMORY)
        self._lock = threading.Lock()

    def add(self, runs: Iterable[EndedRun]) -> None:
        with self._lock:
            self._runs.extend(runs)
            self._drop_private_texts()
            bytes = sum(run.weight() for run in self._runs)
            while bytes > IN_MEMORY_BYTES:
                bytes -= self._runs.popleft().weight()

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
        return run is not None
