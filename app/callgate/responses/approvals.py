"""Approvals by the client: it is sent `mcp_approval_request` items, and sends back `mcp_approval_response` items.

A decision is about one call of the previous response, or of the response that the request in the same input is from. It counts once,
and runs the call with the arguments that were shown. A call without a decision does not run.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.conversation.approved_calls import ApprovedCall
from callgate.conversation.client_run_items import CALLS
from callgate.hosted.rows import ITEMS as HOSTED_ITEMS
from callgate.state.responses import StoredResponse

REASON_CHARS: Final = 500
REQUEST: Final = "mcp_approval_request"
RESPONSE: Final = "mcp_approval_response"
_REQUEST_ID: Final = re.compile(r"mcpr_([0-9a-f]{24})[0-9a-f]+")
_OF_THE_MODEL: Final = (
    frozenset({"reasoning", "function_call", "custom_tool_call", "mcp_call", "mcp_approval_request", *HOSTED_ITEMS})
    | CALLS
)
_NOT_HERE: Final = "Not run: approved earlier, and its result is not in this conversation."


class DecidedRequest(msgspec.Struct, frozen=True):
    """A request for approval in the input, with what it is in the chat."""

    call: Mapping[str, Any]
    answer: Mapping[str, Any]
    is_kept: bool
    """Whether the call is the stored one, and may stand in one turn with others."""


class Decisions(msgspec.Struct, eq=False):
    """The decisions in a request about waiting calls."""

    answers: dict[str, dict[str, Any]] = {}
    """The messages that answer the calls of the previous response, by call id; placeholders for approved calls until they have
    run."""
    approved: list[ApprovedCall] = []
    ids: dict[str, str] = {}
    """The ids of the approval requests, by the calls that are decided now."""
    in_history: dict[str, DecidedRequest] = {}
    """The decided requests that stand in the input, by their ids."""


def asked_in(items: str | Sequence[Any]) -> set[str]:
    """Return the ids of the responses whose requests for approval are in an input together with their decisions."""
    requests = set[str]()
    decided = set[str]()
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("type") == REQUEST and isinstance(item.get("id"), str):
            requests.add(item["id"])
        elif isinstance(item, dict) and item.get("type") == RESPONSE:
            decided.add(str(item.get("approval_request_id")))
    matches = (_REQUEST_ID.fullmatch(id) for id in requests & decided)
    return {f"resp_{parts[1]}" for parts in matches if parts is not None}


def decisions_of(
    items: str | Sequence[Any], parent: StoredResponse | None, responses: Mapping[str, StoredResponse]
) -> Decisions:
    """Read the decisions of an input. `parent`: the previous response. `kept`: the stored responses of requests in the input, by
    their ids."""
    decisions = Decisions()
    if isinstance(items, list):
        objects = [item if isinstance(item, dict) else {} for item in items]
    else:
        objects = []
    requests = {item["id"]: item for item in objects if item.get("type") == REQUEST and isinstance(item.get("id"), str)}
    run_requests = {
        item["approval_request_id"]
        for item in objects
        if item.get("type") == "mcp_call" and isinstance(item.get("approval_request_id"), str)
    }
    last = max((place for place, item in enumerate(objects) if _is_of_the_model(item)), default=-1)
    for place, item in enumerate(objects):
        if item.get("type") != RESPONSE:
            continue
        where = f"input[{place}]"
        request_id = item.get("approval_request_id")
        if not isinstance(item.get("approve"), bool):
            raise wrong(f"{where}.approve", f"Invalid type for '{where}.approve': expected a boolean.", "invalid_type")
        if isinstance(request_id, str) and request_id in run_requests:
            continue  # its call stands in the input, with what came of it
        if (
            not isinstance(request_id, str)
            or request_id in decisions.ids.values()
            or request_id in decisions.in_history
        ):
            raise _names_nothing(where)
        if parent is not None and request_id in parent.approvals:
            call = _call_of(parent, parent.approvals[request_id])
            decisions.answers[call["id"]] = _decide(decisions, call, request_id, item)
        elif request_id not in requests:
            raise _names_nothing(where)
        else:
            _decide_in_history(decisions, requests[request_id], item, responses, where, is_new=place > last)
    return decisions


def _is_of_the_model(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    return (isinstance(kind, str) and kind in _OF_THE_MODEL) or item.get("role") == "assistant"


def _decide_in_history(
    decisions: Decisions,
    request: Mapping[str, Any],
    item: Mapping[str, Any],
    responses: Mapping[str, StoredResponse],
    where: str,
    *,
    is_new: bool,
) -> None:
    """Read a decision about a request in the input. One that the model has been told of already is a part of the history."""
    request_id = request["id"]
    parts = _REQUEST_ID.fullmatch(request_id)
    response = None
    call_id = None
    if parts is not None:
        response = responses.get(f"resp_{parts[1]}")
    if response is not None:
        call_id = response.approvals.get(request_id)
    if response is not None and call_id is not None:
        call = _call_of(response, call_id)
        _check_unchanged(request, call, where)
        if is_new:
            answer = _decide(decisions, call, request_id, item)
        else:
            answer = _answer_decided_before(call, item)
        decisions.in_history[request_id] = DecidedRequest(call, answer, is_kept=True)
    elif is_new:
        raise _names_nothing(where)
    else:
        function = {"name": str(request.get("name")), "arguments": str(request.get("arguments") or "{}")}
        call = {"id": request_id, "type": "function", "function": function}
        answer = _answer_decided_before(call, item)
        decisions.in_history[request_id] = DecidedRequest(call, answer, is_kept=False)


def _answer_decided_before(call: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    return _answer(call, _NOT_HERE if item["approve"] else _refusal(item))


def _decide(decisions: Decisions, call: Mapping[str, Any], request_id: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Note a decision; return the message that answers the call."""
    decisions.ids[call["id"]] = request_id
    if not item["approve"]:
        return _answer(call, _refusal(item))
    function = call["function"]
    # Unique, so that no text of the client's is taken for it.
    placeholder = f"Approved, and not run yet ({secrets.token_hex(12)})."
    decisions.approved.append(
        ApprovedCall(id=call["id"], name=function["name"], arguments=function["arguments"], placeholder=placeholder)
    )
    return _answer(call, placeholder)


def _check_unchanged(request: Mapping[str, Any], call: Mapping[str, Any], where: str) -> None:
    """Refuse a request that is not what was shown. What runs is what was shown, whatever stands here."""
    function = call["function"]
    for name in ("name", "arguments"):
        if request.get(name) is not None and request[name] != function[name]:
            place = f"{where}.approval_request_id"
            message = f"'{place}' names a request whose {name} are not those that were shown. Nothing was run."
            raise wrong(place, message, "approval_changed")


def _call_of(response: StoredResponse, call_id: str) -> Mapping[str, Any]:
    """Return a call of the last turn of a stored response."""
    for message in reversed(response.history):
        for call in message.get("tool_calls") or ():
            if call["id"] == call_id:
                return dict(call)
    raise AssertionError("what waits for approval is a call of its response")


def _refusal(item: Mapping[str, Any]) -> str:
    reason = item.get("reason")
    if isinstance(reason, str) and reason:
        why = f" Their reason: {reason[:REASON_CHARS]}"
    else:
        why = ""
    return f"Not run: the user was asked and refused this call.{why} Do not send the same call again."


def _answer(call: Mapping[str, Any], content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def _names_nothing(where: str) -> Exception:
    where = f"{where}.approval_request_id"
    message = (
        f"'{where}' names no call that waits for approval: it is not of the previous response or of a request in this input, it is "
        "another key's, or it was kept too long ago."
    )
    return wrong(where, message)
