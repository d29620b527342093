"""Reports calls that wait for approval, and their ends, to the log, the metrics, the feed and a webhook."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from callgate.records.ports import RunRecorder
from callgate.telemetry import logs
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.outages import Outage
from callgate.tools.approvals.queue import PendingApproval, SettledApproval
from callgate.tools.approvals.settings import WebhookSection
from callgate.tools.kinds.http.addresses import AddressRules

if TYPE_CHECKING:
    from callgate.tools.approvals.webhook import ApprovalWebhook
    from callgate.tools.kinds.http.client import Web

audit = structlog.get_logger("callgate.audit")


class ApprovalNotices:
    """The reporter of the process."""

    def __init__(self, metrics: Metrics, recorder: RunRecorder, web: "Callable[[], Web]") -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._web = web
        self._webhook: ApprovalWebhook | None = None
        self._outage = Outage()
        """Of the webhook: messages that it did not take."""

    def use(self, section: WebhookSection | None) -> None:
        """Set the webhook."""
        if section is None:
            if self._webhook is not None:
                self._webhook.spec = None
            return
        from callgate.tools.approvals.webhook import ApprovalWebhook, WebhookSpec

        self._webhook = self._webhook or ApprovalWebhook(self._web, self._count_sent, mask=logs.masked_value)
        rules = AddressRules.of(allow_private=section.allow_private, allow=section.allow_hosts)
        secret = section.secret.get_secret_value()
        self._webhook.spec = WebhookSpec(section.url, secret, rules, with_arguments=section.arguments)

    def waiting(self, approval: PendingApproval) -> None:
        """Report that a call has begun to wait. The log has only a hash of its arguments."""
        self._metrics.approvals_waiting.inc()
        audit.info(
            "approval_waiting",
            safety=str(approval.tool.policy.safety),
            expires=int(approval.expires),
            **_log_fields(approval),
        )
        self._recorder.watchers.publish("approval", {**approval.facts(), "state": "waiting"})
        if self._webhook is not None:
            self._webhook.send(approval)

    def settled(self, settled: SettledApproval) -> None:
        """Log the end of a call's wait, in one line."""
        approval = settled.approval
        self._metrics.approvals_waiting.dec()
        self._metrics.approvals.of(str(settled.decision)).inc()
        audit.info(
            "approval_settled",
            decision=str(settled.decision),
            by=settled.by or None,
            reason=settled.reason or None,
            **_log_fields(approval),
        )
        self._recorder.watchers.publish(
            "approval", {**approval.facts(), "state": str(settled.decision), "by": settled.by}
        )
        if self._webhook is not None:
            self._webhook.withdraw(approval.id)

    async def close(self) -> None:
        if self._webhook is not None:
            await self._webhook.close()

    def _count_sent(self, approval: PendingApproval, failure: str) -> None:
        self._metrics.approval_webhooks.of("failed" if failure else "delivered").inc()
        if not failure:
            if failures := self._outage.over():
                audit.warning("approval_webhook_back", failures=failures)
        elif failures := self._outage.failed():
            audit.warning(
                "approval_webhook_failed",
                approval=approval.id,
                tool=approval.tool.name,
                reason=failure,
                failures=failures,
            )


def _log_fields(approval: PendingApproval) -> dict[str, Any]:
    asked = {} if approval.question is None else {"server": approval.question.server, "mode": approval.question.mode}
    return {
        **asked,
        "approval": approval.id,
        "tool": approval.tool.name,
        "hash": approval.hash,
        "caller": approval.caller,
        "run_id": approval.run_id,
        "call_id": approval.call.id,
    }
