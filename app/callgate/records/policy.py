"""The settings of recording, as they hold for one run."""

from typing import Final, Literal, TypeAlias

import msgspec

from callgate.records.row import RunRow

RunsKept: TypeAlias = Literal["all", "eventful", "off"]
WireKept: TypeAlias = Literal["off", "on_error", "on"]


class RecordPolicy(msgspec.Struct, frozen=True):
    """The settings of recording."""

    runs: RunsKept = "all"
    passed: Literal["all", "errors"] = "errors"
    content_bytes: int | None = None
    """The kept length of each text, in bytes; None keeps no texts."""
    private_to: str = ""
    """The owner of the request, where its texts are kept in memory alone, and shown to nobody else; empty where the config says that
    texts are kept."""
    wire: WireKept = "off"
    """Whether the bodies of providers' answers are kept with the other texts."""
    keep_days: float = 14.0
    keep_bytes: int = 1024**3
    wire_days: float = 1.0
    slow_seconds: float = 30.0
    """`eventful` keeps runs that take longer."""

    def keeps(self, row: RunRow) -> bool:
        """Return whether an ended run is kept."""
        if self.runs != "eventful":
            return self.runs == "all"
        slow = row.seconds is not None and row.seconds > self.slow_seconds
        return bool(row.is_odd or row.calls or row.findings or row.error or slow)


NOT_KEPT: Final = RecordPolicy(runs="off")
