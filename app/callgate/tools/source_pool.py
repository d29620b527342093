"""Shares open sources between registries: on a reload the new one takes over those of the old.

A source is known by its identity, a digest of all its settings. The last borrower closes it, so that a server with an unchanged
entry is not restarted, and one with a changed entry is closed after its last request.
"""

from collections.abc import Callable, Hashable

import msgspec

from callgate.tools.executor import Source
from callgate.tools.source_supervisor import BeginsAnew, Delay, SourceStatus, SourceSupervisor, reopening_delay


class _Lease(msgspec.Struct):
    supervisor: SourceSupervisor
    borrowers: int = 0


class SourcePool:
    """The open sources of the process. `on_status` is called with each change of a source."""

    def __init__(
        self, on_status: Callable[[SourceStatus], None] | None = None, *, delay: Delay = reopening_delay
    ) -> None:
        self._on_status = on_status or (lambda status: None)
        self._delay = delay
        self._leases: dict[Hashable, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def borrow(self, identity: Hashable, source: Source) -> SourceSupervisor:
        """Return the supervisor of the source with this identity, after opening `source` if there is none."""
        lease = self._leases.get(identity)
        if lease is None:
            lease = self._leases[identity] = _Lease(SourceSupervisor(source, self._on_status, delay=self._delay))
            lease.supervisor.start()
        lease.borrowers += 1
        return lease.supervisor

    def hurry(self, name: str) -> None:
        """Open sources of this name, if they are down, without a pause."""
        for lease in self._leases.values():
            if lease.supervisor.source.name == name:
                lease.supervisor.hurry()

    def begin_anew(self, name: str, identity: Hashable) -> None:
        """Have sources of this name forget what is of an identity: its login is another by now, or is no more."""
        for lease in self._leases.values():
            source = lease.supervisor.source
            if source.name == name and isinstance(source, BeginsAnew):
                source.begin_anew(identity)

    def has(self, identity: Hashable) -> bool:
        return identity in self._leases

    async def give_back(self, identity: Hashable) -> None:
        """Give a source back; the last borrower waits until it is closed."""
        lease = self._leases[identity]
        lease.borrowers -= 1
        if not lease.borrowers:
            del self._leases[identity]  # a new borrower opens another one
            await lease.supervisor.stop()
