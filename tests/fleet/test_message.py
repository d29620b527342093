"""Celery's messages, as we write them: Celery's own producer makes the same."""

import base64
import hashlib
import json
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate.fleet.message import (
    TASK,
    FleetCall,
    control_channel,
    control_exchange,
    queue_of,
    revoke_message,
    task_message,
)
from tests.harness.needs import needs
from tests.harness.redis import redis_server

pytestmark = [pytest.mark.anyio, needs("redis-server", "module:celery")]

CALL = FleetCall("id1", "add", "call_1", '{"a": "\\ud83d"}', '{"a": "…"}', "run_1", 0, "key", 1000, "replies")
UNLIKE = {"origin", "argsrepr", "kwargsrepr", "reply_to", "delivery_tag", "expires", "clock"}
"""What names the producer, the message or a moment, and texts for people."""


def unfolded(message: bytes) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(message)
    whole["body"] = json.loads(base64.b64decode(whole["body"]))
    for part in ("headers", "properties"):
        whole[part] = {name: value for name, value in whole[part].items() if name not in UNLIKE}
    return whole


async def test_they_are_those_of_celerys_own_producer(tmp_path: Path) -> None:
    from celery import Celery
    from redis.asyncio import Redis

    queue, exchange = queue_of("callgate:", "gpu"), control_exchange("callgate:")
    async with redis_server(tmp_path) as url, Redis.from_url(f"{url}/3") as client:
        app = Celery("theirs", broker=f"{url}/3", set_as_current=False)
        app.conf.update(control_exchange=exchange, task_ignore_result=True)
        async with client.pubsub(ignore_subscribe_messages=True) as control:
            await control.psubscribe("*")
            app.send_task(
                TASK, (msgspec.structs.asdict(CALL),), task_id="id1", queue=queue, time_limit=35.0, ignore_result=True
            )
            app.control.revoke("id1", terminate=True, signal="SIGKILL")
            app.close()
            published = None
            while published is None:
                published = await control.get_message(timeout=5)
        theirs = await client.rpop(queue)
    assert isinstance(theirs, bytes)
    assert unfolded(task_message(CALL, queue, 35.0)) == unfolded(theirs)
    assert published["channel"].decode() == control_channel("callgate:", f"{url}/3")
    ours = unfolded(revoke_message("id1", exchange, "gpu", b"key"))
    assert ours["body"]["arguments"].pop("signature")
    assert ours["body"]["arguments"].pop("pool") == "gpu"
    assert ours == unfolded(published["data"])


def test_a_call_arrives_as_it_was_sent_whatever_the_model_wrote() -> None:
    call = msgspec.structs.replace(CALL, id='run "1"\\/0', text='half a pair: \ud83d, "quoted"')
    sent = unfolded(task_message(call, "queue", 1.5))
    assert msgspec.convert(sent["body"][0][0], FleetCall) == call
    assert sent["headers"]["timelimit"] == [1.5, None]
    ids = sent["headers"]["id"], sent["headers"]["root_id"], sent["properties"]["correlation_id"]
    assert ids == (call.id, call.id, call.id)
    hashed = json.dumps([call.tool, call.arguments, call.text, call.run_id, call.key]).encode()
    assert call.arguments_hash() == hashlib.sha256(hashed).hexdigest(), "workers of another version know it"


def test_the_hash_is_of_all_that_decides_what_is_done() -> None:
    others = [
        msgspec.structs.replace(CALL, tool="sub"),
        msgspec.structs.replace(CALL, arguments="{}"),
        msgspec.structs.replace(CALL, text="{}"),
        msgspec.structs.replace(CALL, key="other"),
        msgspec.structs.replace(CALL, run_id="other"),
    ]
    assert len({each.arguments_hash() for each in (CALL, *others)}) == 6
    assert msgspec.structs.replace(CALL, reply="other").arguments_hash() == CALL.arguments_hash()


OTHER_VALUES = {"turn": 7, "max_bytes": 1 << 40}


@pytest.mark.parametrize("name", [name for name in CALL.__struct_fields__ if name != "signature"])
def test_a_call_of_which_anything_was_changed_is_not_signed(name: str) -> None:
    signed = CALL.signed(b"key")
    assert signed.is_signed(b"key")
    assert not signed.is_signed(b"key of another pool")
    assert not CALL.is_signed(b"key")
    assert not msgspec.structs.replace(signed, **{name: OTHER_VALUES.get(name, "other")}).is_signed(b"key")
    assert not msgspec.structs.replace(signed, signature="\ud83d").is_signed(b"key")


@pytest.mark.parametrize("more", ["", "?ssl_ca_certs=/etc/ca.pem"])
def test_a_worker_checks_the_certificate_of_redis_as_a_proxy_does(more: str) -> None:
    from callgate.fleet.worker.celery_app import celery_app

    with celery_app(f"rediss://localhost:1/0{more}", "callgate:", {"gpu": b"key"}).connection_for_read() as connection:
        assert connection.ssl
        assert connection.ssl.get("ssl_cert_reqs", ssl.CERT_REQUIRED) is ssl.CERT_REQUIRED
        assert connection.ssl.get("ssl_check_hostname", True)
