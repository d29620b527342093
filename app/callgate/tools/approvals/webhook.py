"""Posts a notice of each call that waits for approval to the operator's webhook, without delaying the call."""

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx2
import msgspec

from callgate.calls.outcome import Failed, FailureKind
from callgate.http.backoff import full_jitter
from callgate.tools.approvals.queue import PendingApproval
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import Request, Web, ask

WITH_ARGUMENTS: Final = ("arguments", "message", "schema", "url")
"""What only a webhook with `arguments` is sent: what a model wrote, and what a tool asks."""
TRIES: Final = 10
"""Attempts within a minute and a half, for a restart of the receiver."""
TRY_SECONDS: Final = 10.0
MAX_UNDER_WAY: Final = 100
"""The limit of messages that are being sent."""
ANSWER_BYTES: Final = 1024
"""The limit of a response, of which only the status is used."""
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - not one itself
"""The prefix of a secret in base64, by Standard Webhooks."""

retry_delay: Callable[[int], float] = partial(full_jitter, first=0.5, longest=30.0, least=0.2)


@dataclass(frozen=True, slots=True)
class WebhookSpec:
    """The address and headers of the webhook, as the operator configured them."""

    url: str
    secret: str = field(repr=False)
    rules: AddressRules = PUBLIC_ONLY
    with_arguments: bool = False


class ApprovalWebhook:
    """Sends messages, signed by Standard Webhooks, with retries as long as the call waits."""

    def __init__(
        self,
        web: Callable[[], Web],
        on_result: Callable[[PendingApproval, str], None],
        *,
        mask: Callable[[Any], Any] = lambda value: value,
        delay: Callable[[int], float] = retry_delay,
    ) -> None:
        """`on_result` is called with the result of a message: empty, or why it was not delivered. `mask` removes secrets from
        arguments."""
        self._web = web
        self._on_result = on_result
        self._mask = mask
        self._delay = delay
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.spec: WebhookSpec | None = None

    def send(self, approval: PendingApproval) -> None:
        """Begin to send a message about a call."""
        if self.spec is None:
            return
        if len(self._under_way) >= MAX_UNDER_WAY:
            self._on_result(approval, "too many messages are under way")
            return
        task = asyncio.create_task(self._send(self.spec, approval), name=f"webhook for {approval.id}")
        self._under_way[approval.id] = task
        task.add_done_callback(lambda _: self._under_way.pop(approval.id, None))

    def withdraw(self, id: str) -> None:
        """Stop the retries for a call that does not wait any more."""
        if (task := self._under_way.get(id)) is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _send(self, spec: WebhookSpec, approval: PendingApproval) -> None:
        facts = approval.facts()
        if not spec.with_arguments:
            for name in WITH_ARGUMENTS:
                facts.pop(name, None)
        facts = self._mask(facts)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(approval.since))
        body = msgspec.json.encode({"type": "approval.waiting", "timestamp": when, "data": facts})
        failure = ""
        for tries in range(1, TRIES + 1):
            # The time of this attempt, because receivers refuse old messages.
            moment = str(int(time.time()))
            signed = b".".join((approval.id.encode(), moment.encode(), body))
            digest = hmac.digest(secret_bytes(spec.secret), signed, hashlib.sha256)
            request = Request(
                "POST",
                httpx2.URL(spec.url),
                {
                    "Content-Type": "application/json",
                    "webhook-id": approval.id,
                    "webhook-timestamp": moment,
                    "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
                },
                body,
            )
            try:
                async with asyncio.timeout(TRY_SECONDS):
                    outcome = await ask(self._web(), spec.rules, request, ANSWER_BYTES)
            except TimeoutError:
                outcome = Failed(f"no answer after {TRY_SECONDS:g} s", FailureKind.UNAVAILABLE)
            if not isinstance(outcome, Failed):
                self._on_result(approval, "")
                return
            failure = outcome.text
            if outcome.kind is FailureKind.REFUSED:
                break  # refused by our address rules, or a redirect: a retry would fail as well
            if tries < TRIES:
                await asyncio.sleep(self._delay(tries))
        self._on_result(approval, failure)


def secret_bytes(secret: str) -> bytes:
    """Decode a secret. Raises `ValueError` for invalid base64 after the prefix."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
