"""The types of tools that providers run, by family: what they are called on each API, and how their calls are shown there."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

Family: TypeAlias = Literal["web_search", "web_fetch", "code_interpreter", "file_search", "image_generation"]
_DATED: Final = r"(_\d{8}|_\d{4}_\d{2}_\d{2})?"


class HostedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One family."""

    family: Family
    """What the config calls it."""
    types: str
    """A pattern of its types, dated ones included."""
    subjects: Sequence[str]
    """Names that tools give to the argument that a call is about. The first is that of the APIs."""
    prefix: str
    """The beginning of the ids of its items in responses."""
    item: str
    """The type of its items in responses."""
    working: str
    """What the event between the first and the last of an item is called."""
    block: str = ""
    """The name in the block of a call in messages; empty where that API does not have it. A result's block is called after it."""
    count: str = ""
    """The field of the usage of messages that counts its calls."""
    narrows: Mapping[str, Sequence[str]] = {}
    """Fields that bound what its calls may do, each with the names that tools give to a parameter for it."""
    hints: Mapping[str, Sequence[str]] = {}
    """Further fields that tools have under other names."""

    def subject_in(self, properties: Mapping[str, Any]) -> str:
        """Return the parameter of a tool that a call is about; the first one of a tool that calls it otherwise."""
        for name in self.subjects:
            if name in properties:
                return name
        return next(iter(properties), self.subjects[0])


_DOMAINS: Final[Mapping[str, Sequence[str]]] = {
    "allowed_domains": ("allowed_domains", "include_domains", "includeDomains"),
    "blocked_domains": ("blocked_domains", "exclude_domains", "excludeDomains"),
}
ROWS: Final[Sequence[HostedRow]] = (
    HostedRow(
        family="web_search",
        types=r"web_search(_preview)?" + _DATED,
        subjects=("query", "q", "search_query", "searchQuery", "search_term", "question", "text", "input"),
        prefix="ws",
        item="web_search_call",
        working="searching",
        block="web_search",
        count="web_search_requests",
        narrows=_DOMAINS,
        hints={"user_location": ("user_location", "country")},
    ),
    HostedRow(
        family="web_fetch",
        types=r"web_fetch" + _DATED,
        subjects=("url", "uri", "link", "address", "urls"),
        prefix="ws",
        item="web_search_call",
        working="searching",
        block="web_fetch",
        count="web_fetch_requests",
        narrows=_DOMAINS,
    ),
    HostedRow(
        family="code_interpreter",
        types=r"code_interpreter|code_execution" + _DATED,
        subjects=("code", "source", "script", "program", "command", "input"),
        prefix="ci",
        item="code_interpreter_call",
        working="interpreting",
        block="code_execution",
    ),
    HostedRow(
        family="file_search",
        types="file_search",
        subjects=("query", "q", "queries", "search_query", "question", "text", "input"),
        prefix="fs",
        item="file_search_call",
        working="searching",
        narrows={"filters": ("filters",)},
        hints={"max_num_results": ("max_num_results", "max_results", "limit", "count", "top_k")},
    ),
    HostedRow(
        family="image_generation",
        types="image_generation",
        subjects=("prompt", "description", "text", "input"),
        prefix="ig",
        item="image_generation_call",
        working="generating",
    ),
)
BY_FAMILY: Final[Mapping[str, HostedRow]] = {row.family: row for row in ROWS}
ITEMS: Final[Mapping[str, HostedRow]] = {row.item: row for row in reversed(ROWS)}
"""The rows by the types of items; of those that share one, the first."""
BLOCKS: Final[Mapping[str, HostedRow]] = {row.block: row for row in ROWS if row.block}
OUR_BLOCK: Final = "srvtoolu_callgate_"
"""The beginning of the ids of blocks that were made here. No provider takes such blocks as its own."""
_PATTERNS: Final = [(re.compile(row.types), row) for row in ROWS]


def row_of(kind: object) -> HostedRow | None:
    """Return the row of a type of tool; None for a type that is in none."""
    if not isinstance(kind, str):
        return None
    return next((row for pattern, row in _PATTERNS if pattern.fullmatch(kind)), None)
