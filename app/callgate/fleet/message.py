"""The messages between proxies and workers in Redis: a call as a Celery task (its message protocol, version 2), and a worker's
replies.

https://docs.celeryq.dev/en/stable/internals/protocol.html. Not by Celery's client, which blocks the event loop for seconds
while Redis is away, and costs five times as much; a contract test compares both.

All of them are signed with the key of their pool, which is in the ledger: who can write to Redis, or has taken a worker of another pool,
makes none. A call runs only if it matches its row there as well.
"""

import base64
import functools
import hashlib
import hmac
import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from callgate.fleet.redis_link import MAX_REPLY
from callgate.untrusted.messagepack import OpenedPack, PackDoor, open_pack
from callgate.untrusted.readers import msgpack_reader

TASK: Final = "callgate.run"
KILL_AFTER: Final = 5.0
"""Seconds after its timeout when Celery kills a call that its proxy has not stopped."""


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
    pool: str = ""
    signature: str = ""
    """Of all other fields."""

    def signed(self, key: bytes) -> "FleetCall":
        """Return the call as a worker takes it. `key`: that of its pool."""
        return msgspec.structs.replace(self, signature=self._signature(key))

    def is_signed(self, key: bytes) -> bool:
        return hmac.compare_digest(self.signature.encode(errors="replace"), self._signature(key).encode())

    def _signature(self, key: bytes) -> str:
        fields = msgspec.structs.astuple(msgspec.structs.replace(self, signature=""))
        return sign(key, CALL, json.dumps(fields).encode()).hex()

    def arguments_hash(self) -> str:
        """Return a digest of all that determines the effect of the call."""
        parts = (self.tool, self.arguments, self.text, self.run_id, self.key)
        return hashlib.sha256(f"[{', '.join(map(quoted, parts))}]".encode()).hexdigest()


def message_id(key: str, offer: int) -> str:
    """Return the id of the messages about one offer of a call."""
    return key if offer == 1 else f"{key}#{offer}"


def key_of(id: str) -> str:
    return id.partition("#")[0]


def offer_of(id: str) -> int:
    """Return the number of the offer that a message is about."""
    number = id.partition("#")[2]
    return int(number) if number else 1


class FleetReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a worker about a call: progress, or its end."""

    id: str
    message: str = ""
    fraction: float | None = None
    ended: bool = False
    outcome: bytes | None = None
    """Left out where it is long; it is in the ledger."""


CALL: Final = b"call\0"
REPLY: Final = b"reply\0"
KILL: Final = b"kill\0"
_TASK_BODY: Final = b'[[%b],{},{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]'
_ID: Final = "\0id"
"""A placeholder for the call's id in the cached parts of messages."""

_encode = msgspec.json.Encoder().encode
_encode_reply = msgspec.msgpack.Encoder().encode
_decode_reply = msgpack_reader(FleetReply)
SIGNATURE_BYTES: Final = 16


def sign(key: bytes, kind: bytes, data: bytes) -> bytes:
    """Return a signature of a message. Its kind is signed as well, so that one kind does not pass for another."""
    return hmac.digest(key, kind + data, "sha256")[:SIGNATURE_BYTES]


def encode_reply(reply: FleetReply, key: bytes) -> bytes:
    data = _encode_reply(reply)
    return sign(key, REPLY, data) + data


class _ReplyId(msgspec.Struct):
    id: str


_read_reply_id = msgpack_reader(_ReplyId)


def call_of_reply(message: bytes) -> str:
    """Return the key of the call that a reply is about, before its signature is checked. Raises the errors of `READ_ERRORS`."""
    return key_of(_read_reply_id(_opened_reply(message)).id)


def decode_reply(message: bytes, key: bytes) -> FleetReply:
    """Decode a reply. Raises the errors of `READ_ERRORS`, also if the signature is wrong."""
    signature = message[:SIGNATURE_BYTES]
    data = message[SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, sign(key, REPLY, data)):
        raise msgspec.ValidationError("it is not signed with the key of its pool")
    return _decode_reply(_opened_reply(message))


REPLY_BYTES: Final = 1024 * 1024
REPLY_OF_WORKER: Final = PackDoor(name="reply of a worker", bytes=MAX_REPLY, values=100, depth=4)


def _opened_reply(message: bytes) -> OpenedPack:
    return open_pack(message[SIGNATURE_BYTES:], REPLY_OF_WORKER)


def queue_of(prefix: str, pool: str) -> str:
    return f"{prefix}pool.{pool}"


def control_exchange(prefix: str) -> str:
    return f"{prefix}control"


def control_channel(prefix: str, redis_url: str) -> str:
    """Return the channel on which workers are sent the calls to stop."""
    database = urlsplit(redis_url).path.strip("/")
    return f"/{database if database.isdigit() else '0'}.{control_exchange(prefix)}.pidbox"


def task_message(call: FleetCall, queue: str, seconds: float) -> bytes:
    """Encode a call as a task. `seconds`: after which the worker kills it."""
    try:
        arguments = _encode(call)
    except UnicodeEncodeError:  # a model may write a lone surrogate
        arguments = json.dumps(msgspec.structs.asdict(call)).encode()
    before, *after = _task_envelope(queue, seconds)
    return before + base64.b64encode(_TASK_BODY % arguments) + _encode(call.id).join(after)


@functools.lru_cache
def _task_envelope(queue: str, seconds: float) -> tuple[bytes, ...]:
    """Return the parts of a message that all calls of a tool share. The body goes after the first of them, and the id between
    the others."""
    headers: dict[str, Any] = {
        "lang": "py",
        "task": TASK,
        "id": _ID,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [seconds, None],
        "root_id": _ID,
        "parent_id": None,
        "argsrepr": "",
        "kwargsrepr": "",
        "origin": "callgate",
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {"correlation_id": _ID, "reply_to": "", "delivery_mode": 2}
    before, after = _message(b"", headers, properties, "", queue, _ID).split(b'""', 1)
    return before + b'"', *(b'"' + after).split(_encode(_ID))


def revoke_message(id: str, exchange: str, pool: str, key: bytes) -> bytes:
    """Encode the message to all workers to kill the process that runs this call. `key`: that of the call's pool."""
    signature = sign(key, KILL, id.encode()).hex()
    arguments = {"task_id": id, "terminate": True, "signal": "SIGKILL", "pool": pool, "signature": signature}
    body = {"method": "revoke", "arguments": arguments, "destination": None, "pattern": None, "matcher": None}
    return _message(_encode(body), {"clock": 1}, {"delivery_mode": 2}, f"{exchange}.pidbox", "", id)


def _message(
    body: bytes, headers: dict[str, Any], properties: dict[str, Any], exchange: str, routing_key: str, tag: str
) -> bytes:
    message_properties = {
        "delivery_info": {"exchange": exchange, "routing_key": routing_key},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": tag,
    }
    whole = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties | message_properties,
    }
    return _encode(whole)
