"""Celery's Redis transport, which accepts only our messages.

Celery itself stops at an invalid message, and executes any valid one. Because others may write to Redis, a call is claimed in
the ledger before it runs, and of control messages only the one to kill a call is accepted, if it is signed with the
key of one of the worker's pools.
"""

import hmac
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec
import structlog
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombus
from kombu.transport.redis import Channel, Transport
from redis import ConnectionError, ResponseError  # noqa: A004 - the name that kombu knows

from callgate.fleet.message import KILL, TASK, sign
from callgate.untrusted.doors import Door, Untrusted, open_text
from callgate.untrusted.readers import READ_ERRORS, json_reader, read_leniently

AGAIN_SECONDS: Final = 0.5
"""Between two tries to read a queue that cannot be read."""
ORDERS: Final = frozenset({"revoke"})
QUEUED: Final = Door(name="a message to workers", bytes=512 * 1024 * 1024, uncounted=1024, values=1_000, depth=16)
CALL: Final = Door(
    name="a call in a message to workers", bytes=384 * 1024 * 1024, uncounted=1024, values=1_000, depth=16
)
"""As Celery reads it in the process that runs it: the arguments in it are one text."""
ORDER: Final = Door(name="an order to workers", bytes=64 * 1024, uncounted=1024, values=100, depth=16)

log = structlog.get_logger("callgate.worker")


class _Headers(msgspec.Struct):
    task: str
    id: str


class _Properties(msgspec.Struct):
    delivery_tag: str
    delivery_info: dict[str, Any]
    body_encoding: str


class _TaskMessage(msgspec.Struct, rename={"content_type": "content-type", "content_encoding": "content-encoding"}):
    """The fields of a message that Celery reads before a child process does."""

    body: bytes
    """Encoded in base64."""
    headers: _Headers
    properties: _Properties
    content_type: str
    content_encoding: str


class _OrderMessage(msgspec.Struct):
    body: bytes
    properties: _Properties


class _Revoked(msgspec.Struct):
    task_id: str
    pool: str = ""
    signature: str = ""
    terminate: bool = False
    signal: str = "SIGKILL"


class _Order(msgspec.Struct):
    method: str
    arguments: _Revoked
    destination: None = None
    pattern: None = None
    matcher: None = None


_read_order = json_reader(_Order)


class TolerantChannel(Channel):
    """Continues after invalid messages, and keeps no list of unacknowledged messages in Redis, because a proxy publishes a
    lost call again. That list would cost eight commands per call."""

    ack_emulation = False

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except ValueError as error:
            log.error("fleet_message_ignored", error=str(error))  # noqa: TRY400 - the reason is all there is to say
            return True
        except ResponseError as error:
            # A replica that was the primary, or a queue that is no list. For Celery this is the end of the worker; another
            # connection may lead to a server that gives messages.
            log.error("fleet_queue_not_read", error=str(error))  # noqa: TRY400
            time.sleep(AGAIN_SECONDS)
            self.client.connection.disconnect()
            raise ConnectionError(str(error)) from error


class VerifyingTransport(Transport):
    """Delivers only our messages."""

    Channel = TolerantChannel
    keys: ClassVar[Mapping[str, bytes]] = {}
    """Those of the worker's pools."""

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            if queue.endswith(".pidbox"):
                order = _read_order(Untrusted(msgspec.convert(message, _OrderMessage).body, ORDER).open())
                if order.method not in ORDERS:
                    raise msgspec.ValidationError(f"the order is `{order.method[:64]}`")
                if order.arguments.pool not in self.keys:
                    return  # for workers of another pool
                signature = sign(self.keys[order.arguments.pool], KILL, order.arguments.task_id.encode()).hex()
                if not hmac.compare_digest(order.arguments.signature.encode(), signature.encode()):
                    raise msgspec.ValidationError("the order is not signed with the key of its pool")
            else:
                task = msgspec.convert(message, _TaskMessage)
                if task.headers.task != TASK:
                    raise msgspec.ValidationError(f"the task is `{task.headers.task[:64]}`")
                Untrusted(task.body, CALL).open()
        except READ_ERRORS as error:
            log.error("fleet_message_ignored", error=str(error))  # noqa: TRY400
            return
        super()._deliver(message, queue)  # type: ignore[no-untyped-call]


def read_message(text: str) -> Any:
    """Decode what stands in a queue or was published. Raises `ValueError`."""
    try:
        return read_leniently(open_text(text, QUEUED))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def use(keys: Mapping[str, bytes]) -> None:
    """Make Celery use this transport for Redis in this process. `keys`: those of the worker's pools."""
    VerifyingTransport.keys = keys
    setattr(kombus, "loads", read_message)  # noqa: B010 - its own recurses as deep as anybody in Redis likes
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:{VerifyingTransport.__name__}"
