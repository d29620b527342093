"""The list of models in the format of Anthropic's API."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from callgate.conversation.errors import ChatError


def models_page(ids: Sequence[str], created: float, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the requested page of the list: up to `limit` models after or before one."""
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 4 and 1 <= int(limit) <= 1000):
        raise ChatError(400, "limit: must be between 1 and 1000", param="limit")
    after = query.get("after_id")
    before = query.get("before_id")
    start = 0
    end = len(ids)
    if after is not None:
        start = ids.index(after) + 1 if after in ids else end
    if before is not None:
        end = ids.index(before) if before in ids else start
        start = max(start, end - int(limit))
    shown = ids[start : min(end, start + int(limit))]
    return {
        "data": [model_card(id, created) for id in shown],
        "has_more": start > 0 if before is not None else start + len(shown) < end,
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def model_card(id: str, created: float) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": id, "display_name": id, "created_at": created_at}
