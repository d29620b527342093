"""Server-sent events: bytes in, data payloads out. What a payload means is not known here.

Event names, ids and retry times are read and left aside; no model API says anything with them that matters to us.
"""

BOM = b"\xef\xbb\xbf"
EVENT_BYTES = 16 * 1024 * 1024
"""An event longer than this is an attack or a fault: a whole answer with an image in it is smaller."""
KEEP_ALIVE_WORDS = frozenset({b"ping", b"keepalive", b"keep-alive", b"heartbeat", b"null"})


class SseTooLarge(Exception):
    """One event went over the bound."""


class SseReader:
    """Feed it what the network brings, cut anywhere; it gives back the data of every event that has ended."""

    def __init__(self, event_bytes: int = EVENT_BYTES) -> None:
        self._bound = event_bytes
        self._start: bytes | None = b""
        """The first bytes, until it is clear whether they are a byte order mark."""
        self._line: list[bytes] = []
        self._line_size = 0
        self._data: list[bytes] = []
        self._data_size = 0
        self._after_cr = False

    @property
    def is_between_events(self) -> bool:
        """Whether nothing of what has come is still waiting for its end."""
        return not self._line and not self._data and not self._after_cr

    def feed(self, data: bytes) -> list[bytes]:
        if self._start is not None:
            data = self._without_bom(data)
        if self.is_between_events and len(data) <= self._bound:
            events = _plain_events(data)
            if events is not None:
                return events
        return self._read_lines(self._with_plain_ends(data))

    def finish(self) -> list[bytes]:
        """What was left without its blank line. Some servers end so; whether it is whole is for the caller to see."""
        start, self._start = self._start, None
        return self._read_lines((start or b"") + b"\n\n")

    def _without_bom(self, data: bytes) -> bytes:
        assert self._start is not None
        data = self._start + data
        if len(data) < len(BOM) and BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(BOM)

    def _with_plain_ends(self, data: bytes) -> bytes:
        if self._after_cr and data:
            # The CR has ended its line already, so that the event was not held back for what may follow.
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _read_lines(self, data: bytes) -> list[bytes]:
        events: list[bytes] = []
        *ended, rest = data.split(b"\n")
        for piece in ended:
            line = self._joined(piece)
            if line:
                self._keep(line)
            elif self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
                self._data_size = 0
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
            self._check_size()
        return events

    def _joined(self, piece: bytes) -> bytes:
        if not self._line:
            return piece
        self._line.append(piece)
        line = b"".join(self._line)
        self._line.clear()
        self._line_size = 0
        return line

    def _keep(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        value = line[6:] if line.startswith(b"data: ") else line[5:]
        if value or self._data:
            self._data.append(value)
            self._data_size += len(value) + 1
            self._check_size()

    def _check_size(self) -> None:
        if self._line_size + self._data_size > self._bound:
            raise SseTooLarge(f"an event is longer than {self._bound} bytes")


def looks_like_keep_alive(payload: bytes) -> bool:
    """Gateways send comments as data (`data: : keepalive`), or a bare word. None of it is part of an answer."""
    text = payload.strip()
    return not text or text.startswith(b":") or text.lower() in KEEP_ALIVE_WORDS


def _plain_events(data: bytes) -> list[bytes] | None:
    """Most reads are whole events of one line each; they are told and cut by a few look-ups in C."""
    if not data.startswith(b"data: ") or not data.endswith(b"\n\n") or b"\r" in data:
        return None
    events = data[6:-2].split(b"\n\ndata: ")
    return events if data.count(b"\n") == 2 * len(events) and all(events) else None
