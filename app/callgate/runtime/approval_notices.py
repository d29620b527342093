"""Reports calls that wait for approval, and their ends, to the log, the metrics, the feed and a webhook."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from callgate.config.schema.approvals import WebhookSection
from callgate.recorder.recorder import Recorder
from callgate.telemetry import logs
from callgate.telemetry.metrics import Metrics
from callgate.tools.addresses import AddressRules
from callgate.tools.approvals import PendingApproval, SettledApproval

if TYPE_CHECKING:
    from callgate.tools.approval_webhook import ApprovalWebhook
    from callgate.tools.http_client import Web

audit = structlog.get_logger("callgate.audit")


class ApprovalNotices:
    """The reporter of the process."""

    def __init__(self, metrics: Metrics, recorder: Recorder, web: "Callable[[], Web]") -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._web = web
        self._webhook: ApprovalWebhook | None = None

    def use(self, section: WebhookSection | None) -> None:
        """Set the webhook."""
        if section is None:
            if self._webhook is not None:
                self._webhook.spec = None
            return
        from callgate.tools.approval_webhook import ApprovalWebhook, WebhookSpec

        self._webhook = self._webhook or ApprovalWebhook(self._web, self._sent, mask=logs.masked_value)
        rules = AddressRules.of(allow_private=section.allow_private, allow=section.allow_hosts)
        secret = section.secret.get_secret_value()
        self._webhook.spec = WebhookSpec(section.url, secret, rules, with_arguments=section.arguments)

    def waiting(self, asked: PendingApproval) -> None:
        """Report that a call has begun to wait. The log has only a hash of its arguments."""
        self._metrics.approvals_waiting.inc()
        audit.info(
            "approval_waiting", safety=str(asked.tool.policy.safety), expires=int(asked.expires), **_named(asked)
        )
        self._recorder.publish("approval", {**asked.facts(), "state": "waiting"})
        if self._webhook is not None:
            self._webhook.send(asked)

    def settled(self, settled: SettledApproval) -> None:
        """Log the end of a call's wait, in one line."""
        asked = settled.asked
        self._metrics.approvals_waiting.dec()
        self._metrics.approvals.of(str(settled.decision)).inc()
        audit.info(
            "approval_settled",
            decision=str(settled.decision),
            by=settled.by or None,
            reason=settled.reason or None,
            **_named(asked),
        )
        self._recorder.publish("approval", {**asked.facts(), "state": str(settled.decision), "by": settled.by})
        if self._webhook is not None:
            self._webhook.withdraw(asked.id)

    async def close(self) -> None:
        if self._webhook is not None:
            await self._webhook.close()

    def _sent(self, asked: PendingApproval, failure: str) -> None:
        self._metrics.approval_webhooks.of("failed" if failure else "delivered").inc()
        if failure:
            audit.warning("approval_webhook_failed", approval=asked.id, tool=asked.tool.name, reason=failure)


def _named(asked: PendingApproval) -> dict[str, Any]:
    return {
        "approval": asked.id,
        "tool": asked.tool.name,
        "hash": asked.hash,
        "caller": asked.caller,
        "run_id": asked.run_id,
        "call_id": asked.call.id,
    }
