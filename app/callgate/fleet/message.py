"""What goes over Redis: a call as a task of Celery's (its message protocol, version 2), and what a worker says of it.

https://docs.celeryq.dev/en/stable/internals/protocol.html. Written here because Celery's own client blocks the event loop for
seconds while Redis is away, and costs five times as much; a contract test compares both.
"""

import base64
import hashlib
import json
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

TASK: Final = "callgate.run"
KILL_AFTER: Final = 5.0
"""Seconds after its time that Celery kills a call whose proxy has not."""


class FleetCall(msgspec.Struct, frozen=True):
    """One call, on its way to a worker."""

    id: str
    tool: str
    call_id: str
    arguments: str
    """As JSON."""
    text: str
    """As the model wrote them."""
    run_id: str
    turn: int
    key: str
    max_bytes: int
    reply: str
    """The channel on which its progress and its end are published."""

    @property
    def arguments_hash(self) -> str:
        """Of all that decides what is done."""
        whole = json.dumps([self.tool, self.arguments, self.text, self.run_id, self.key])
        return hashlib.sha256(whole.encode()).hexdigest()


class FleetReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says of a call: progress, or that it has ended."""

    id: str
    message: str = ""
    fraction: float | None = None
    ended: bool = False
    outcome: bytes | None = None
    """Left out where it is long; it stands in the ledger."""


encode_reply = msgspec.msgpack.Encoder().encode
decode_reply = msgspec.msgpack.Decoder(FleetReply).decode


def queue_of(prefix: str, pool: str) -> str:
    return f"{prefix}pool.{pool}"


def control_exchange(prefix: str) -> str:
    return f"{prefix}control"


def control_channel(prefix: str, redis_url: str) -> str:
    """Where workers hear what they are to stop."""
    database = urlsplit(redis_url).path.strip("/")
    return f"/{database if database.isdigit() else '0'}.{control_exchange(prefix)}.pidbox"


def task_message(call: FleetCall, queue: str, seconds: float) -> bytes:
    """`seconds`: after which a worker kills it."""
    embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    body = json.dumps([[msgspec.structs.asdict(call)], {}, embedded])  # as ASCII: a model may write half a pair
    headers: dict[str, Any] = {
        "lang": "py",
        "task": TASK,
        "id": call.id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [seconds, None],
        "root_id": call.id,
        "parent_id": None,
        "argsrepr": "",
        "kwargsrepr": "",
        "origin": "callgate",
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {"correlation_id": call.id, "reply_to": "", "delivery_mode": 2}
    return _message(body, headers, properties, "", queue, call.id)


def revoke_message(id: str, exchange: str) -> bytes:
    """To all workers: kill the process that runs this call."""
    arguments = {"task_id": id, "terminate": True, "signal": "SIGKILL"}
    body = {"method": "revoke", "arguments": arguments, "destination": None, "pattern": None, "matcher": None}
    return _message(json.dumps(body), {"clock": 1}, {"delivery_mode": 2}, f"{exchange}.pidbox", "", id)


def _message(
    body: str, headers: dict[str, Any], properties: dict[str, Any], exchange: str, routing_key: str, tag: str
) -> bytes:
    more = {
        "delivery_info": {"exchange": exchange, "routing_key": routing_key},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": tag,
    }
    whole = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties | more,
    }
    return msgspec.json.encode(whole)
