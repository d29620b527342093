"""The Celery application of a worker: each call is run by a process that can be killed, and is acknowledged early."""

import ssl
from collections.abc import Mapping
from typing import Any, Final

import structlog
from celery import Celery
from celery.app.amqp import AMQP
from celery.backends.base import DisabledBackend
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.states import STARTED
from kombu.connection import Connection

from callgate.fleet.message import TASK, control_exchange, queue_of
from callgate.fleet.worker import transport
from callgate.telemetry.outages import Outage

PROC_ALIVE_SECONDS: Final = 120.0
"""The timeout for a new process to import the tools, such as large GPU libraries."""

LOOK_SECONDS: Final = 0.1
"""How often ended processes are reaped."""
RECONNECT_SECONDS: Final = 0.5
"""The interval of attempts to reach Redis again. Celery's own grows to 30 seconds."""

log = structlog.get_logger("callgate.worker")


class _QuickRestartPool(AsynPool):  # type: ignore[misc]  # celery has no types
    """Replaces killed processes at once. Celery is woken when a pipe closes, which may be before the process can be reaped, and
    checks again only after five seconds."""

    @property
    def timers(self) -> dict[Any, float]:
        return {self.maintain_pool: LOOK_SECONDS}


class _Prefork(TaskPool):  # type: ignore[misc]  # celery has no types
    Pool = _QuickRestartPool


class NoResults(DisabledBackend):  # type: ignore[misc]  # celery has no types
    """A backend without results, which are in the ledger. For the state of a call that is to be killed Celery's own would
    raise, which every other worker would log."""

    def get_state(self, *_: object) -> str:
        return str(STARTED)


BROKER: Final = Outage()
"""Of Redis, for the connections of this process together."""


class _SteadyConnection(Connection):
    """Tries at short, equal intervals to reach Redis again, and logs that now and then. Celery gives the number of attempts, and
    `on_error`, which logs each of them."""

    def ensure_connection(
        self, on_error: Any = None, max_retries: int | None = None, callback: Any = None
    ) -> "_SteadyConnection":
        def count(error: Exception, _: float) -> None:
            if failures := BROKER.failed():
                log.error("fleet_redis_away", error=type(error).__name__, failures=failures)

        interval = dict.fromkeys(("interval_start", "interval_step", "interval_max"), RECONNECT_SECONDS)
        super().ensure_connection(count, max_retries, callback=callback, **interval)  # type: ignore[no-untyped-call]
        if failures := BROKER.over():
            log.warning("fleet_redis_back", failures=failures)
        return self


class _Messages(AMQP):  # type: ignore[misc]  # celery has no types
    Connection = _SteadyConnection


def celery_app(redis_url: str, prefix: str, keys: Mapping[str, bytes], *, fresh_process: bool = False) -> Celery:
    """Make the application. `keys`: those of its pools, with which orders are signed."""
    pools = list(keys)
    transport.use(keys)
    app = Celery(
        "callgate", broker=redis_url, backend=f"{__name__}:{NoResults.__name__}", set_as_current=False, amqp=_Messages
    )
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        task_create_missing_queues=False,
        task_queues={queue_of(prefix, pool): {} for pool in pools},
        task_default_queue=queue_of(prefix, pools[0]),
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_max_tasks_per_child=1 if fresh_process else None,
        worker_proc_alive_timeout=PROC_ALIVE_SECONDS,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        control_exchange=control_exchange(prefix),
        broker_use_ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED} if redis_url.startswith("rediss:") else None,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
    )
    return app


def run_worker(app: Celery, name: str, concurrency: int, run: Any) -> int:
    """Run calls until a signal; those that have begun are finished. `run` is called with each call."""
    app.task(run, name=TASK, ignore_result=True)
    worker = app.Worker(
        hostname=name,
        pool=_Prefork,
        concurrency=concurrency,
        optimization="fair",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="WARNING",
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)
