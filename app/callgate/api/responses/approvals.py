"""Approvals by the client: it is sent `mcp_approval_request` items, and sends back `mcp_approval_response` items.

A decision is about one call of the previous response, counts once, and runs the call with the arguments that were shown. A
call without a decision does not run.
"""

from collections.abc import Sequence
from typing import Any, Final

from callgate.api.request_schema import wrong
from callgate.conversation.approved_calls import ApprovedCall
from callgate.stores.responses import StoredResponse

REASON_CHARS: Final = 500


class Decisions:
    """The decisions in a request about waiting calls."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        """The messages that answer the calls, by call id; placeholders for approved calls until they have run."""
        self.approved: dict[str, ApprovedCall] = {}
        self.ids: dict[str, str] = {}
        """The ids of the approval requests, by call id."""


def decisions_of(items: str | Sequence[Any], parent: StoredResponse | None) -> Decisions:
    decisions = Decisions()
    calls = {
        call["id"]: call for message in (parent.history if parent else ()) for call in message.get("tool_calls", ())
    }
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict) or item.get("type") != "mcp_approval_response":
            continue
        where, asked = f"input[{place}]", item.get("approval_request_id")
        call_id = parent.approvals.get(asked) if parent is not None and isinstance(asked, str) else None
        if call_id is None or call_id in decisions.answers:
            where = f"{where}.approval_request_id"
            raise wrong(where, f"'{where}' names no call of the previous response that waits for approval.")
        if not isinstance(item.get("approve"), bool):
            raise wrong(f"{where}.approve", f"Invalid type for '{where}.approve': expected a boolean.", "invalid_type")
        reason = item.get("reason")
        why = f" Their reason: {reason[:REASON_CHARS]}" if isinstance(reason, str) and reason else ""
        decisions.answers[call_id] = {
            "role": "tool",
            "tool_call_id": call_id,
            "content": f"Not run: the user was asked and refused this call.{why} Do not send the same call again.",
        }
        decisions.ids[call_id] = str(asked)
        if item["approve"]:
            function = calls[call_id]["function"]
            decisions.approved[call_id] = ApprovedCall(call_id, function["name"], function["arguments"])
    return decisions
