"""Tells the client what of its request no model is told."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from callgate.api.left_out import LONGEST_KIND, note_left_out
from callgate.responses.input_items import ReturnedContent
from callgate.responses.offered import Offered
from callgate.responses.request import ResponsesBody


def warn_of_unheard(
    warn: Callable[[str], None],
    params: ResponsesBody,
    offered: Offered,
    items: str | Sequence[Any],
    returned: ReturnedContent,
) -> None:
    """Call `warn` for what was left out while the request was read."""
    if offered.elsewhere:
        kinds = (tool["type"] for tool in offered.elsewhere)
        warn(f"left out of `tools`, nobody here has them: {_listed(kinds)}")
    if offered.unheard:
        warn(f"left out of `tools`: {_listed(offered.unheard)}")
    if isinstance(items, list) and any(isinstance(item, dict) and item.get("phase") for item in items):
        warn("left out of `input`: `phase`, which no chat has a place for")
    if params.stream_options is not None and params.stream_options.get("include_obfuscation"):
        warn("left out: `stream_options.include_obfuscation`; events are not padded here")
    if returned.unheard:
        warn(f"left out of `input`: {_listed(returned.unheard)}")
    if returned.types_left_out:
        note_left_out(warn, returned.types_left_out)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted({ascii(name[:LONGEST_KIND])[1:-1] for name in names}))
