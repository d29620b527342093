"""Lists of items, a page at a time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.api.field_errors import wrong
from callgate.untrusted.readers import read_value

MOST_ITEMS: Final = 100
USUAL_ITEMS: Final = 20


def page_of(items: Sequence[msgspec.Raw], ids: Sequence[str], query: Mapping[str, str], what: str) -> dict[str, Any]:
    """Return the part of a list that a query asks for, the newest first unless it says otherwise. `what` has the items; no others than
    those of the page are decoded."""
    places = list(range(len(items)))
    if query.get("order", "desc") != "asc":
        places.reverse()
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise wrong("after", f"No item of this {what} is called '{after[:80]}'.")
        places = places[places.index(ids.index(after)) + 1 :]
    limit = query.get("limit", str(USUAL_ITEMS))
    if not limit.isdecimal() or not 1 <= int(limit[:4]) <= MOST_ITEMS:
        raise wrong("limit", f"Invalid 'limit': expected a value between 1 and {MOST_ITEMS}.")
    shown = [read_value(items[place]) for place in places[: int(limit)]]
    return list_of(shown, has_more=len(places) > int(limit))


def list_of(items: Sequence[Any], *, has_more: bool = False) -> dict[str, Any]:
    """Return a list in the API's form."""
    ends = {"first_id": None, "last_id": None}
    if items:
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]}
    return {"object": "list", "data": items, **ends, "has_more": has_more}
