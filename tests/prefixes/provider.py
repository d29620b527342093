"""Answers a planned session in the words of whichever API is asked: texts and calls, one answer a request."""

import json
from collections.abc import Sequence
from typing import Any

from tests.models.wire import Request, Wire

Called = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""
READ = 40
WRITTEN = 20
"""Tokens of every prompt that were read from the cache, and written to it."""


class Planned:
    """Makes these calls, request by request, and says "Done." in all that come after."""

    def __init__(self, plan: Sequence[Sequence[Called]], *, in_text: bool = False) -> None:
        self.requests: list[Any] = []
        self._plan = list(plan)
        self._in_text = in_text

    def begin(self, plan: Sequence[Sequence[Called]]) -> None:
        """Begin another session."""
        self.requests.clear()
        self._plan = list(plan)

    async def answer(self, request: Request, wire: Wire) -> None:
        number = len(self.requests)
        self.requests.append(request.body)
        calls = self._plan[number] if number < len(self._plan) else []
        text = "Done."
        if calls and self._in_text:
            listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
            text = json.dumps(listed[0] if len(listed) == 1 else listed)
            calls = []
        await wire.whole(
            _worded(request.target, text, [(f"call_{number}{at}", *call) for at, call in enumerate(calls)])
        )


def _worded(target: str, text: str, calls: Sequence[tuple[str, str, dict[str, Any]]]) -> dict[str, Any]:
    if "/messages" in target:
        content: list[Any] = [{"type": "tool_use", "id": id, "name": name, "input": args} for id, name, args in calls]
        counts = {"cache_read_input_tokens": READ, "cache_creation_input_tokens": WRITTEN}
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "c",
            "content": content or [{"type": "text", "text": text}],
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 40, "output_tokens": 2, **counts},
        }
    if "/responses" in target:
        said = [{"type": "output_text", "text": text, "annotations": []}]
        output: list[Any] = [
            {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": json.dumps(args)}
            for id, name, args in calls
        ] or [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": said}]
        details = {"cached_tokens": READ, "cache_write_tokens": WRITTEN}
        usage = {"input_tokens": 100, "output_tokens": 2, "total_tokens": 102, "input_tokens_details": details}
        head = {"id": "resp_1", "object": "response", "model": "m", "status": "completed"}
        return {**head, "output": output, "usage": usage}
    if "enerateContent" in target:
        parts: list[Any] = [{"functionCall": {"name": name, "args": args}} for _, name, args in calls]
        content_of = {"role": "model", "parts": parts or [{"text": text}]}
        counted = {"promptTokenCount": 100, "candidatesTokenCount": 2, "cachedContentTokenCount": READ}
        return {
            "candidates": [{"content": content_of, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {**counted, "totalTokenCount": 102},
        }
    if "/converse" in target:
        blocks: list[Any] = [{"toolUse": {"toolUseId": id, "name": name, "input": args}} for id, name, args in calls]
        message = {"role": "assistant", "content": blocks or [{"text": text}]}
        cache = {"cacheReadInputTokens": READ, "cacheWriteInputTokens": WRITTEN}
        return {
            "output": {"message": message},
            "stopReason": "tool_use" if calls else "end_turn",
            "usage": {"inputTokens": 40, "outputTokens": 2, "totalTokens": 102, **cache},
        }
    asked = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for id, name, args in calls
    ]
    if "/chat/completions" not in target:  # Cohere's own
        own: dict[str, Any] = (
            {"role": "assistant", "tool_calls": asked}
            if asked
            else {
                "role": "assistant",
                "content": [{"type": "text", "text": text}],
            }
        )
        return {
            "id": "1",
            "finish_reason": "TOOL_CALL" if asked else "COMPLETE",
            "message": own,
            "usage": {"tokens": {"input_tokens": 100, "output_tokens": 2}},
        }
    said_or_called: dict[str, Any] = {"content": None, "tool_calls": asked} if asked else {"content": text}
    choice = {"index": 0, "message": {"role": "assistant", **said_or_called}}
    details = {"cached_tokens": READ}
    return {
        "id": "c1",
        "created": 1,
        "model": "m",
        "object": "chat.completion",
        "choices": [{**choice, "finish_reason": "tool_calls" if asked else "stop"}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 2,
            "total_tokens": 102,
            "prompt_tokens_details": details,
            "cache_creation_input_tokens": WRITTEN,
        },
    }
