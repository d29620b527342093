"""Writes calls of declared tools as the blocks that Anthropic's own have, and reads such blocks that come back."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.hosted.calls import NOT_ALLOWED, USED_UP
from callgate.hosted.declared import HostedTool
from callgate.hosted.returned import digest_of
from callgate.hosted.rows import BLOCKS, OUR_BLOCK
from callgate.hosted.sources import sources_in
from callgate.untrusted.readers import json_reader

RESULT: Final = "_tool_result"
NOT_KNOWN: Final = "[Its result is not kept any more.]"
_CODES: Final[Mapping[FailureKind, str]] = {
    FailureKind.REFUSED: "unavailable",
    FailureKind.NOT_RUN: "invalid_tool_input",
}
RESULTS: Final = frozenset(name + RESULT for name in BLOCKS)
"""The types of the blocks of results."""


def id_of(run_id: str, call_id: str) -> str:
    return OUR_BLOCK + run_id[4:] + digest_of(call_id)


def use(tool: HostedTool, call: ReadyCall, run_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the block of a call without its input, and its input."""
    block = {"type": "server_tool_use", "id": id_of(run_id, call.id), "name": tool.row.block}
    return block, {tool.row.subjects[0]: call.arguments.get(tool.subject, "")}


def result(tool: HostedTool, call: ReadyCall, outcome: Outcome, run_id: str) -> dict[str, Any]:
    """Return the block of a result."""
    name = tool.row.block
    if not isinstance(outcome, Failed):
        content = _content(tool, call, outcome.text)
    elif name == "code_execution" and outcome.kind is FailureKind.RAISED:
        content = _executed("", outcome.text, 1)
    else:
        content = {"type": f"{name}{RESULT}_error", "error_code": error_code(outcome, name)}
    return {"type": name + RESULT, "tool_use_id": id_of(run_id, call.id), "content": content}


def error_code(failure: Failed, name: str) -> str:
    """Return the word of the API for why a call failed."""
    if failure.text == USED_UP:
        return "max_uses_exceeded"
    if name == "web_fetch":
        if failure.text == NOT_ALLOWED:
            return "url_not_allowed"
        if failure.kind in (FailureKind.RAISED, FailureKind.UNAVAILABLE, FailureKind.TIMEOUT):
            return "url_not_accessible"
    return _CODES.get(failure.kind, "unavailable")


def _content(tool: HostedTool, call: ReadyCall, text: str) -> Any:
    match tool.row.block:
        case "web_search":
            # Nothing is encrypted: what the model read is kept here.
            return [
                {
                    "type": "web_search_result",
                    "url": source.url,
                    "title": source.title or source.url,
                    "encrypted_content": "",
                    "page_age": None,
                }
                for source in sources_in(text)
            ]
        case "web_fetch":
            url = call.arguments.get(tool.subject)
            source = {"type": "text", "media_type": "text/plain", "data": text}
            document = {"type": "document", "source": source, "title": None}
            return {
                "type": "web_fetch_result",
                "url": url if isinstance(url, str) else "",
                "content": document,
                "retrieved_at": datetime.now(UTC).isoformat(),
            }
        case _:
            return _executed(text, "", 0)


def _executed(stdout: str, stderr: str, code: int) -> dict[str, Any]:
    return {"type": "code_execution_result", "stdout": stdout, "stderr": stderr, "return_code": code, "content": []}


# Blocks that come back --------------------------------------------------------------------------------------------------


class _ResultPart(msgspec.Struct, gc=False):
    """What a result says, whichever type it is of."""

    type: str = ""
    title: str | None = None
    url: str | None = None
    error_code: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    data: str | None = None
    source: "_ResultPart | None" = None
    content: "_ResultPart | list[_ResultPart] | None" = None


_parts = json_reader(_ResultPart | list[_ResultPart])


def text_of(content: msgspec.Raw) -> str:
    """Return what a result's block says, as far as the client was shown it."""
    try:
        read = _parts(content)
    except msgspec.DecodeError:
        return NOT_KNOWN
    parts = read if isinstance(read, list) else [read]
    return "\n".join(_lines(parts)) or NOT_KNOWN


def _lines(parts: Sequence[_ResultPart]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        texts = (part.title, part.url, part.stdout, part.stderr, part.data)
        lines += [text for text in texts if text]
        if part.error_code:
            lines.append(f"Failed: {part.error_code}")
        if part.source is not None:
            lines += _lines([part.source])
        if isinstance(part.content, _ResultPart):
            lines += _lines([part.content])
    return lines
