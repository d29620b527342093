"""The result of a call as MCP has it, and what is asked of a client before there is one."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from callgate.api.direct_call import CallResult
from callgate.calls.offer import Offer
from callgate.calls.outcome import Failed, File, Image, Returned
from callgate.calls.states import BrokenCall
from callgate.conversation import feedback
from callgate.mcp_server.protocol import encode
from callgate.tools.approvals.queue import PendingApproval
from callgate.tools.questions import Question
from callgate.tools.read_more import ADDRESS, pointer_in

RUN: Final = "io.callgate/run"
UNTRUSTED: Final = "io.callgate/untrusted"
"""Says that a result holds words of others, where the operator says so of its tool."""
APPROVAL: Final = "approval"
"""The key of the form by which a call is approved."""
QUESTION: Final = "question"
MAX_ARGUMENTS: Final = 4_000
"""Characters of the arguments that a form shows; of more it says how many are left out, and the hash is of all."""
APPROVAL_FORM: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Run this call", "default": False},
        "reason": {"type": "string", "title": "Reason", "maxLength": 500},
    },
    "required": ["approve"],
}


def result_of(
    call_result: CallResult, offer: Offer, run_id: str, *, is_untrusted: bool, needs_structured: bool
) -> dict[str, Any]:
    """Return the result of a call. `needs_structured`: the list says that the tool gives structured content."""
    call = call_result.call
    outcome = call_result.outcome
    about: dict[str, Any] = {RUN: run_id}
    if isinstance(call, BrokenCall):
        return _failed(feedback.explain(call, offer), about)
    assert outcome is not None, "a whole call has an outcome"
    if isinstance(outcome, Failed):
        return _failed(outcome.text, about)
    if is_untrusted:
        about[UNTRUSTED] = True
    content = _content(outcome)
    result: dict[str, Any] = {"content": content, "isError": False, "_meta": about}
    if outcome.structured is not None and not outcome.cut_bytes:
        result["structuredContent"] = outcome.structured
    elif needs_structured:
        # A client that validates would throw away a result without it, but reads why it failed.
        why = "The tool's structured content is too long, is none of its schema, or is missing; its text follows."
        return {**result, "isError": True, "content": [_text(why), *content]}
    return result


def _failed(text: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": [_text(text)], "isError": True, "_meta": about}


def _content(outcome: Returned) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if outcome.text or not (outcome.images or outcome.files):
        content.append(_text(outcome.text))
    content += map(_image, outcome.images)
    content += map(_file, outcome.files)
    id = pointer_in(outcome.text) if outcome.cut_bytes else None
    if id is not None:
        link = {"type": "resource_link", "uri": ADDRESS + id, "name": id, "mimeType": "text/plain"}
        content.append({**link, "description": "The whole result, kept for a while for this key."})
    return content


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(image: Image) -> dict[str, Any]:
    return {"type": "image", "data": image.data, "mimeType": image.mime_type}


def _file(file: File) -> dict[str, Any]:
    typed = {"mimeType": file.mime_type} if file.mime_type else {}
    match file.kind:
        case "audio":
            return {"type": "audio", "data": file.data, "mimeType": file.mime_type}
        case "link":
            return {"type": "resource_link", "uri": file.uri, "name": file.name, **typed}
        case "resource":
            body = {"blob": file.data} if file.text is None else {"text": file.text}
            return {"type": "resource", "resource": {"uri": file.uri, **typed, **body}}


def input_required(waiting: Iterable[PendingApproval]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the requests for what calls wait for, and the ids of these by the requests' keys."""
    requests: dict[str, Any] = {}
    ids: dict[str, str] = {}
    for approval in waiting:
        if approval.question is None:
            key = APPROVAL
            params = _approval_params(approval)
        else:
            key = approval.question.key or QUESTION
            if key.startswith(APPROVAL):
                key = f"{QUESTION}_{key}"  # a server's word for its question is never taken for an approval
            params = _question_params(approval.question)
        while key in requests:
            key += "_"
        requests[key] = {"method": "elicitation/create", "params": params}
        ids[key] = approval.id
    return requests, ids


def _approval_params(approval: PendingApproval) -> dict[str, Any]:
    text = json.dumps(approval.call.arguments, sort_keys=True, ensure_ascii=False, indent=2)
    if len(text) > MAX_ARGUMENTS:
        text = f"{text[:MAX_ARGUMENTS]}\n… {len(text) - MAX_ARGUMENTS} characters more, {approval.hash}"
    tool = approval.tool
    message = f"Run {tool.name} ({tool.policy.safety})? It is called with:\n{text}"
    return {"mode": "form", "message": message, "requestedSchema": APPROVAL_FORM}


def _question_params(question: Question) -> dict[str, Any]:
    message = f"{question.server} asks: {question.message}"
    if question.form is None:
        return {"mode": "url", "message": message, "url": question.url}
    form = {key: value for key, value in question.form.items() if key != "additionalProperties"}
    return {"mode": "form", "message": message, "requestedSchema": form}


class Input(msgspec.Struct, frozen=True):
    """What a client's user said."""

    action: str
    content: dict[str, Any] | None = None


def encoded_input(requests: Mapping[str, Any], state: str) -> bytes:
    return encode({"resultType": "input_required", "inputRequests": requests, "requestState": state})
