"""Word of calls that wait: signed, tried again, sent only where the operator lets it, and never waited for."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from callgate.calls.states import ReadyCall
from callgate.conversation.ports import ProgressReport
from callgate.tools.approvals.queue import ApprovalOutcome, ApprovalQueue, PendingApproval
from callgate.tools.approvals.webhook import TRIES, ApprovalWebhook, WebhookSpec
from callgate.tools.executor import Tool
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import Web
from tests.harness.server import serve

pytestmark = pytest.mark.anyio

SECRET = "a secret of twenty-four bytes"
HERE = AddressRules.of(allow_private=True)


class Receiver:
    """Takes what is sent, and answers with the statuses that it is given; the last one for ever."""

    def __init__(self, statuses: Sequence[int] = (204,), location: str = "") -> None:
        self.statuses = list(statuses)
        self.location = location
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.one = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                message = await receive()
                await send({"type": message["type"] + ".complete"})
            return
        request = Request(scope, receive)
        self.got.append((dict(request.headers), await request.body()))
        self.one.set()
        if self.hold is not None:
            await self.hold.wait()
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        await Response(status_code=status, headers={"location": self.location})(scope, receive, send)


class Sender:
    """A webhook with its results."""

    def __init__(self) -> None:
        self.results: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.web = Web()
        self.webhook = ApprovalWebhook(lambda: self.web, self._result, delay=lambda _: 0.0)

    def _result(self, asked: PendingApproval, failure: str) -> None:
        self.results.put_nowait((asked.id, failure))

    async def result(self) -> tuple[str, str]:
        async with asyncio.timeout(30):
            return await self.results.get()


@contextlib.asynccontextmanager
async def sending(receiver: Receiver, rules: AddressRules = HERE, **options: Any) -> AsyncIterator[Sender]:
    async with serve(receiver) as url:
        sender = Sender()
        sender.webhook.spec = WebhookSpec(f"{url}/hook", options.pop("secret", SECRET), rules, **options)
        try:
            yield sender
        finally:
            await sender.webhook.close()
            await sender.web.close()


def pending_approval(id: str = "apr_1") -> PendingApproval:
    tool = Tool("send_mail", "Sends it.", {}, executor=None)  # type: ignore[arg-type]
    call = ReadyCall("call_1", "send_mail", {"to": "planted@example.com"}, "{}")
    return PendingApproval(id, tool, call, "sha256:abc", "run_1", "alice", 1000.0, 1300.0)


async def test_a_message_is_signed_as_standard_webhooks_says() -> None:
    receiver = Receiver()
    async with sending(receiver) as sender:
        sender.webhook.send(pending_approval())
        assert await sender.result() == ("apr_1", "")
    [(headers, body)] = receiver.got
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()

    assert headers["webhook-id"] == "apr_1"
    assert headers["webhook-signature"] == f"v1,{expected}"
    notice = json.loads(body)
    assert (notice["type"], notice["data"]["tool"], notice["data"]["hash"]) == (
        "approval.waiting",
        "send_mail",
        "sha256:abc",
    )


async def test_a_secret_in_base64_is_the_key_that_it_stands_for() -> None:
    key = b"\x00\xff" * 16
    receiver = Receiver()
    async with sending(receiver, secret="whsec_" + base64.b64encode(key).decode()) as sender:
        sender.webhook.send(pending_approval())
        await sender.result()
    [(headers, body)] = receiver.got
    signed = f"apr_1.{headers['webhook-timestamp']}.".encode() + body

    assert headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


@pytest.mark.parametrize("with_arguments", [False, True])
async def test_arguments_are_sent_only_where_the_operator_wants_it(with_arguments: bool) -> None:
    receiver = Receiver()
    async with sending(receiver, with_arguments=with_arguments) as sender:
        sender.webhook.send(pending_approval())
        await sender.result()

    assert (b"planted@example.com" in receiver.got[0][1]) == with_arguments


async def test_it_is_sent_again_until_it_is_taken() -> None:
    receiver = Receiver([500, 503, 404, 200])
    async with sending(receiver) as sender:
        sender.webhook.send(pending_approval())
        assert await sender.result() == ("apr_1", "")

    assert len(receiver.got) == 4


async def test_it_is_given_up_in_the_end_with_the_reason() -> None:
    receiver = Receiver([500])
    async with sending(receiver) as sender:
        sender.webhook.send(pending_approval())
        _, failure = await sender.result()

    assert "500" in failure
    assert len(receiver.got) == TRIES


async def test_an_address_that_is_not_public_is_refused_and_nothing_is_sent() -> None:
    receiver = Receiver()
    async with sending(receiver, PUBLIC_ONLY) as sender:
        sender.webhook.send(pending_approval())
        _, failure = await sender.result()

    assert "loopback" in failure
    assert receiver.got == []


async def test_a_redirect_is_not_followed() -> None:
    receiver = Receiver([302], location="/elsewhere")
    async with sending(receiver) as sender:
        sender.webhook.send(pending_approval())
        _, failure = await sender.result()

    assert "redirect" in failure
    assert len(receiver.got) == 1


async def test_it_is_not_sent_again_once_the_call_does_not_wait_any_more() -> None:
    receiver = Receiver([500])
    receiver.hold = asyncio.Event()
    async with sending(receiver) as sender:
        sender.webhook.send(pending_approval())
        async with asyncio.timeout(30):
            await receiver.one.wait()
        sender.webhook.withdraw("apr_1")
        receiver.hold.set()
        sender.webhook.send(pending_approval("apr_2"))
        assert (await sender.result())[0] == "apr_2"
    ids = [headers["webhook-id"] for headers, _ in receiver.got]

    assert ids == ["apr_1"] + ["apr_2"] * TRIES


async def test_messages_that_cannot_be_delivered_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.tools.approvals.webhook.MAX_UNDER_WAY", 1)
    receiver = Receiver()
    receiver.hold = asyncio.Event()
    async with sending(receiver) as sender:
        sender.webhook.send(pending_approval())
        sender.webhook.send(pending_approval("apr_2"))
        assert await sender.result() == ("apr_2", "too many messages are under way")
        receiver.hold.set()
        assert await sender.result() == ("apr_1", "")


async def test_a_call_does_not_wait_for_its_message() -> None:
    receiver = Receiver()
    receiver.hold = asyncio.Event()
    async with sending(receiver) as sender:
        queue = ApprovalQueue(on_waiting=sender.webhook.send)

        async def report(progress: ProgressReport) -> None:
            if waiting := queue.waiting():
                queue.decide(waiting[0].id, ApprovalOutcome.APPROVED, by="alice")

        tool, call = pending_approval().tool, pending_approval().call
        async with asyncio.timeout(30):
            refusal = await queue.ask(tool, call, report, run_id="run_1", caller="bob", seconds=60, max_waiting=1)
        receiver.hold.set()

    assert refusal is None
