"""A filter for lists of runs, as SQL and for runs in memory."""

from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.records.row import USUAL_STATES, RunRow


class RunFilter(msgspec.Struct, frozen=True):
    """A filter for lists of runs."""

    model: str | None = None
    key: str | None = None
    state: str | None = None
    odd: bool = False
    tool: str | None = None
    finding: str | None = None
    """`tool` and `finding` have no index: `Recorder.matching` compares them run by run."""
    before: float | None = None
    """Only runs that began earlier, or at the same time with an id that sorts before `before_id`."""
    before_id: str = ""
    since: float | None = None
    until: float | None = None

    def matches(self, row: RunRow) -> bool:
        """Return whether a run matches, except for its tool and finding, which `matches_names` compares."""
        if self.before is not None and run_place(row) >= (self.before, self.before_id):
            return False
        return (
            self.model in (None, row.model)
            and self.key in (None, row.key)
            and self.state in (None, row.state)
            and (not self.odd or row.is_odd)
            and (self.since is None or row.began >= self.since)
            and (self.until is None or row.began < self.until)
        )

    def matches_names(self, row: RunRow) -> bool:
        """Return whether a run has the tool and the finding."""
        return self.tool in (None, *row.tools) and self.finding in (None, *row.findings)

    def behind(self, row: RunRow) -> "RunFilter":
        """Return the filter for the runs behind one in the list."""
        return msgspec.structs.replace(self, before=row.began, before_id=row.id)

    def where(self) -> tuple[str, list[Any]]:
        """Return the same as a condition in SQL, with its values."""
        fields: Mapping[str, str | None] = {"model": self.model, "key": self.key, "state": self.state}
        equal = {name: value for name, value in fields.items() if value is not None}
        conditions = [f"{name} = ?" for name in equal]
        values: list[Any] = list(equal.values())
        if self.odd:
            conditions.append("odd")
        if self.state not in (None, "answered"):
            # Both are true of all these runs, and let SQLite use the indexes that have no others.
            conditions.append("state <> 'answered'")
            if self.state not in USUAL_STATES:
                conditions.append("odd")
        for mark, moment in ((">=", self.since), ("<", self.until)):
            if moment is not None:
                conditions.append(f"began {mark} ?")
                values.append(moment)
        if self.before is not None:
            conditions.append("(began < ? OR (began = ? AND id < ?))")
            values += [self.before, self.before, self.before_id]
        return " AND ".join(conditions) or "1", values


def run_place(row: RunRow) -> tuple[float, str]:
    """Return the sort key of a run in a list."""
    return row.began, row.id
