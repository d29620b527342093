"""A filter for lists of runs, as SQL and for runs in memory."""

from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.recorder.hours import provider_of
from callgate.records.row import USUAL_STATES, RunRow


class RunFilter(msgspec.Struct, frozen=True):
    """A filter for lists of runs."""

    model: str | None = None
    key: str | None = None
    state: str | None = None
    odd: bool = False
    tool: str | None = None
    finding: str | None = None
    outcome: str | None = None
    """How a call of the run ended, of `tool` where one is named: see `RunRow.outcomes`."""
    provider: str | None = None
    """The provider that answered. `tool`, `finding`, `outcome` and `provider` have no index: `Recorder.matching` compares them run by
    run."""
    oldest_first: bool = False
    before: float | None = None
    """Only runs behind one in the list: those that began earlier, or at the same time with an id that sorts before `before_id`; later
    with `oldest_first`."""
    before_id: str = ""
    since: float | None = None
    until: float | None = None

    def matches(self, row: RunRow) -> bool:
        """Return whether a run matches, except for what `matches_names` compares."""
        if self.before is not None:
            behind = (self.before, self.before_id)
            if run_place(row) == behind or (run_place(row) > behind) != self.oldest_first:
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
        """Return whether a run has the tool, the finding, the outcome and the provider."""
        if self.tool not in (None, *row.tools) or self.finding not in (None, *row.findings):
            return False
        if self.provider not in (None, provider_of(row.deployment)):
            return False
        if self.outcome is None:
            return True
        if self.tool is not None:
            return self.outcome in row.outcomes.get(self.tool, ())
        return any(self.outcome in outcomes for outcomes in row.outcomes.values())

    @property
    def has_names(self) -> bool:
        """True if it has something that `matches_names` compares."""
        return any(name is not None for name in (self.tool, self.finding, self.outcome, self.provider))

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
            mark = ">" if self.oldest_first else "<"
            conditions.append(f"(began {mark} ? OR (began = ? AND id {mark} ?))")
            values += [self.before, self.before, self.before_id]
        return " AND ".join(conditions) or "1", values

    def order(self) -> str:
        """Return the order of the list in SQL."""
        if self.oldest_first:
            return "began, id"
        return "began DESC, id DESC"


def run_place(row: RunRow) -> tuple[float, str]:
    """Return the sort key of a run in a list."""
    return row.began, row.id
