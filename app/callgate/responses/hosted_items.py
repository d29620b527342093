"""Writes calls of declared tools as the items that OpenAI's own have, and reads such items that come back."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from callgate.calls.outcome import Failed, Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.hosted.declared import HostedTool
from callgate.hosted.rows import ITEMS, HostedRow
from callgate.hosted.sources import sources_in

SOURCES: Final = "web_search_call.action.sources"
RESULTS: Final = {"web_search_call": "web_search_call.results", "file_search_call": "file_search_call.results"}
OUTPUTS: Final = "code_interpreter_call.outputs"
CONTAINER: Final = "callgate"
"""The container that an item of a code interpreter names: there is none that a client could ask for."""
MADE: Final = "[An image was made, and shown.]"
NOT_KNOWN: Final = "[Its result is not kept any more.]"
_WORDS: Final = ("query", "pattern", "url")
"""What an action is about, by its types."""


def beginning(tool: HostedTool, call: ReadyCall) -> dict[str, Any]:
    """Return the fields of an item when its call begins, without id and status."""
    subject = call.arguments.get(tool.subject)
    kind = tool.row.item
    if kind == "web_search_call":
        return {"type": kind, "action": _action(tool.row, subject)}
    if kind == "code_interpreter_call":
        return {"type": kind, "code": _text(subject), "container_id": CONTAINER, "outputs": None}
    if kind == "file_search_call":
        return {"type": kind, "queries": _texts(subject), "results": None}
    return {"type": kind, "result": None}


def end(tool: HostedTool, outcome: Outcome, includes: Collection[str]) -> dict[str, Any]:
    """Return the fields that an item has when its call has ended. `includes`: what the request wants to see of it."""
    fields: dict[str, Any] = {"status": "completed"}
    if isinstance(outcome, Failed):
        fields["status"] = "failed"
    kind = tool.row.item
    if kind == "code_interpreter_call" and OUTPUTS in includes:
        fields["outputs"] = [{"type": "logs", "logs": outcome.text}]
    if kind == "image_generation_call":
        fields["result"] = ""  # clients take no null at the end
        if isinstance(outcome, Returned) and outcome.images:
            fields["result"] = outcome.images[0].data
    if RESULTS.get(kind) in includes and isinstance(outcome, Returned):
        fields["results"] = _results(kind, outcome.text)
    return fields


def with_sources(action: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """Return the action of a search with the pages that its result names."""
    if isinstance(outcome, Failed):
        return {**action, "sources": []}
    return {**action, "sources": [{"type": "url", "url": source.url} for source in sources_in(outcome.text)]}


def _action(row: HostedRow, subject: Any) -> dict[str, Any]:
    if row.family == "web_fetch":
        return {"type": "open_page", "url": _text(subject)}
    return {"type": "search", "query": _text(subject), "queries": _texts(subject)}


def _results(kind: str, text: str) -> list[dict[str, Any]]:
    if kind == "file_search_call":
        return [{"file_id": "", "filename": "", "attributes": {}, "score": 0.0, "text": text}]
    return [{"type": "text_result", "url": source.url, "title": source.title} for source in sources_in(text)]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(_texts(value))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for text in value if isinstance(text, str)]
    return []


# Items that come back ---------------------------------------------------------------------------------------------------


def read_back(item: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Return name, arguments and result of the call that an item was, as far as it says them."""
    row = ITEMS[item["type"]]
    if row.item == "web_search_call":
        return _search(item)
    if row.item == "code_interpreter_call":
        text = "\n".join(_of_each(item.get("outputs"), "logs"))
        return row.family, {row.subjects[0]: _text(item.get("code"))}, text or NOT_KNOWN
    if row.item == "file_search_call":
        results = item.get("results")
        text = "\n".join(_of_each(results, "text"))
        return row.family, {row.subjects[0]: _text(item.get("queries"))}, text or NOT_KNOWN
    if item.get("result"):
        return row.family, {}, MADE
    return row.family, {}, NOT_KNOWN


def _search(item: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    action = item.get("action")
    if not isinstance(action, Mapping):
        action = {}
    name = "web_search"
    if action.get("type") == "open_page":
        name = "web_fetch"
    arguments: dict[str, Any] = {word: value for word in _WORDS if isinstance(value := action.get(word), str) and value}
    queries = action.get("queries")
    if not arguments and isinstance(queries, list):
        arguments["query"] = _text(queries)
    lines = [*_of_each(item.get("results"), "title"), *_of_each(action.get("sources"), "url")]
    return name, arguments, "\n".join(dict.fromkeys(lines)) or NOT_KNOWN


def _of_each(values: Any, name: str) -> Sequence[str]:
    if not isinstance(values, list):
        return []
    return [text for value in values if isinstance(value, Mapping) and isinstance(text := value.get(name), str)]
