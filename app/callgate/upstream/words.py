"""Telling in a few look-ups that a read of a stream is nothing but more words, so that it need not be looked at.

Idempotency it is known what stands around the words of a stream, a read is nothing but words if its events begin, meet and end
as they do, and it has just the quotes and line breaks that stand around words: then none can stand in them, and nothing
without a quote says anything else. A read with an escaped quote in its words is looked at like any other.
"""

import re

MOST_LESSONS = 3
_STRING = re.compile(rb'"(?:content|reasoning_content|reasoning|arguments)"\s*:\s*"([^"\\\n]+)"')


class Words:
    def __init__(self) -> None:
        self._before = self._after = self._between = b""
        self._quotes = 0
        self._lessons = 0

    def are_all_of(self, data: bytes) -> bool:
        if not self._quotes or not data.startswith(self._before) or not data.endswith(self._after):
            return False
        events = data.count(self._between) + 1
        return data.count(b'"') == events * self._quotes and data.count(b"\n") == 2 * events

    def learn(self, data: bytes) -> None:
        """Take what stands around the words of the last event; these are whole events that were looked at, and say no more."""
        if self._lessons >= MOST_LESSONS:
            return
        event = data[data.rfind(b"\n\n", 0, -2) + 2 :] if data.count(b"\n") > 2 else data
        found = _STRING.search(event)
        if found is None or event.count(b"\n") != 2:
            return
        self._lessons += 1
        self._before, self._after = event[: found.start(1)], event[found.end(1) :]
        self._between = self._after + self._before
        self._quotes = self._between.count(b'"')
