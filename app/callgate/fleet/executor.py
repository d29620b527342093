"""An executor that runs a tool on a worker."""

from msgspec.structs import replace

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.fleet.fleet import Fleet, FleetPool
from callgate.fleet.message import KILL_AFTER
from callgate.tools.executor import CallContext, Tool


class FleetExecutor:
    """Runs the calls of one tool on a pool."""

    def __init__(self, fleet: Fleet, pool: FleetPool, tool: str, seconds: float) -> None:
        self._fleet = fleet
        self._pool = pool
        self._tool = tool
        self._seconds = seconds

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        return await self._fleet.run(self._pool, self._tool, call, context, self._seconds)


class NoFleet:
    """Refuses the calls of a tool that should run on a pool, in a process without workers."""

    def __init__(self, pool: str) -> None:
        self._pool = pool

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        text = f"Not run: this tool runs on the pool {self._pool}, and this server was started without pools."
        return Failed(text, FailureKind.REFUSED)


def on_fleet(tool: Tool, fleet: Fleet, pool: FleetPool) -> Tool:
    """Return the tool with an executor on a pool. Its timeout counts from its start on a worker; here the time in the queue is
    added."""
    seconds = tool.policy.timeout
    return replace(
        tool,
        executor=FleetExecutor(fleet, pool, tool.name, seconds),
        policy=replace(tool.policy, timeout=seconds + pool.queue_seconds + 2 * KILL_AFTER),
        offered=True,
        queue=None,
    )
