"""Recorded answers as replies: a case of the corpus, or one reply of a recording, played as it was."""

from collections.abc import Mapping
from typing import Any, cast

from tests.scripted_upstream.script import End, Reply


def case_reply(case: Mapping[str, Any]) -> Reply:
    """A `stream` case can only be streamed, a `message` case only be sent whole."""
    if "chunks" in case:
        return Reply(chunks=case["chunks"], end=cast(End, case.get("end", "done")))
    if "message" in case:
        return Reply(body=whole_body(case["message"], case["finish_reason"]))
    raise ValueError(f"{case.get('id')}: neither a stream nor a message case")


def whole_body(message: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 81, "completion_tokens": 24, "total_tokens": 105}
    head = {"id": "chatcmpl-7fa1", "object": "chat.completion", "created": 1763400000, "model": "gpt-4o-mini"}
    return {**head, "choices": [choice], "usage": usage}


def recorded_reply(recorded: Mapping[str, Any]) -> Reply:
    """One answer that was taken down in both modes."""
    return Reply(chunks=recorded["chunks"], end=cast(End, recorded.get("end", "done")), body=recorded["whole"])
