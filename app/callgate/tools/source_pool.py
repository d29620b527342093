"""Shares open sources between registries: on a reload the new one takes over those of the old.

A source is known by its identity, which says all that it was made from. The last to give it back closes it, so a server
whose entry did not change is never restarted, and one that did is closed when the last request has left it.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from callgate.tools.executor import Source
from callgate.tools.source_supervisor import Delay, SourceStatus, SourceSupervisor, reopening_delay


@dataclass(slots=True)
class _Lease:
    supervisor: SourceSupervisor
    borrowers: int = 0


class SourcePool:
    """`on_status` is called with each change of a source, whoever has it at the time."""

    def __init__(
        self, on_status: Callable[[SourceStatus], None] | None = None, *, delay: Delay = reopening_delay
    ) -> None:
        self._on_status = on_status or (lambda status: None)
        self._delay = delay
        self._leases: dict[Hashable, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def borrow(self, identity: Hashable, source: Source) -> SourceSupervisor:
        """The supervisor of a source with this identity. Where there is none, `source` is opened and kept under it."""
        lease = self._leases.get(identity)
        if lease is None:
            lease = self._leases[identity] = _Lease(SourceSupervisor(source, self._on_status, delay=self._delay))
            lease.supervisor.start()
        lease.borrowers += 1
        return lease.supervisor

    def has(self, identity: Hashable) -> bool:
        return identity in self._leases

    async def give_back(self, identity: Hashable) -> None:
        """The last to give it back waits until it is closed."""
        lease = self._leases[identity]
        lease.borrowers -= 1
        if not lease.borrowers:
            del self._leases[identity]  # whoever wants it from now on opens one anew
            await lease.supervisor.stop()
