"""A run that has ended, as it waits to be written and is kept in memory."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from callgate.recorder.stored_event import StoredEvent, decode_events, run_event
from callgate.recorder.usual_run import read_usual
from callgate.records.row import RecordedRun, RunEvent, RunRow
from callgate.untrusted.messagepack import pack_written_here
from callgate.untrusted.readers import msgpack_reader

if TYPE_CHECKING:
    from callgate.recorder.private_texts import PrivateTexts

ROW_WEIGHT: Final = 2048
"""About how many bytes a row takes in memory."""

encode: Final = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_content: Final = msgpack_reader(dict[str, str])


class EndedRun(msgspec.Struct, gc=False):
    """A run that has ended, as it is stored: a usual one as what happened, any other with its events and totals."""

    begun: RunRow
    """Its row; of a usual run without the totals of its events."""
    events: bytes
    """Encoded as in the file; empty for a usual run."""
    content: bytes
    """Empty if no texts are kept."""
    has_wire: bool = False
    """True if the bodies of providers' answers are among its texts."""
    private_to: str = ""
    """Who alone is shown its texts; empty if it has none that are kept in memory alone."""
    private: "PrivateTexts | None" = None
    """Its texts that are kept in memory alone. They are never written."""
    usual: bytes = b""
    """What happened in a usual run; empty for any other."""

    @property
    def id(self) -> str:
        return self.begun.id

    def read(self) -> tuple[RunRow, bytes]:
        """Return its row with all totals, and its events encoded as in the file."""
        if self.usual:
            reader = read_usual(self.usual)
            return reader.row, encode(reader.events)
        return self.begun, self.events

    def row(self) -> RunRow:
        """Return its row with all totals."""
        return self.read()[0]

    def weight(self) -> int:
        """Return about how many bytes it takes in memory."""
        weight = ROW_WEIGHT + len(self.events) + len(self.content) + len(self.usual)
        if self.private is not None:
            weight += self.private.weight()
        return weight

    def as_seen_by(self, owner: str) -> "EndedRun":
        """Return the run with the texts that it may show to an owner."""
        if self.private is not None and owner == self.private_to:
            row, events = self.read()
            return self.private.shown(row, events)
        return self

    def without_private_texts(self) -> "EndedRun":
        """Return the run after its private texts were dropped, with that as the reason why they are missing."""
        if self.private is None:
            return self
        return msgspec.structs.replace(self, private=self.private.dropped())

    def recorded(self) -> RecordedRun:
        """Return the run as readers see it."""
        row, events = self.read()
        content: Mapping[str, str] = {}
        if self.content:
            content = decode_content(pack_written_here(self.content))
        return RecordedRun(row, decoded_events(events), content)


def decoded_events(events: bytes) -> list[RunEvent]:
    """Decode the events of a run."""
    return [run_event(stored) for stored in decode_events(pack_written_here(events))]


def ended_run(
    row: RunRow,
    events: Sequence[StoredEvent],
    content: Mapping[str, str] | None = None,
) -> EndedRun:
    """Encode a run. `row` has the totals of its events."""
    encoded = b""
    if content:
        encoded = encode(content)
    return EndedRun(row, encode(events), encoded)
