"""Token usage: the table of counts, and one report of them.

The table says where each API has a count and where it is shown. Readers, writers, metrics, spans, prices and recorded runs are
loops over it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

import msgspec

MOST_TOKENS: Final = 1_000_000_000
"""Larger token counts are taken for mistakes; they would not fit into the databases."""

HOSTED_USES: Final = "server_tool_use"
"""The field of a report that has how often the provider ran each of its own tools. Anthropic's name, which others have taken."""

UsageScope: TypeAlias = Literal["sum", "last_turn"]
"""What an answer reports: the sum over its turns, or the counts of its last turn."""
Api: TypeAlias = Literal["messages", "bedrock", "cohere"]
"""The APIs whose counts stand side by side in one object."""
Path: TypeAlias = tuple[str, ...]
"""The fields that lead to a count: one, or the name of an object with details and a field in it."""


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """One count of tokens: its places in each API, and its names where it is shown. An empty name stands for none."""

    name: str
    """Its field in `TokenCounts`."""
    part_of: Literal["prompt", "completion"] | None = None
    """The count that includes it. Only `prompt` and `completion` are whole."""
    chat: tuple[Path, ...]
    """Its places in a report. The counts of another API are written to all of them."""
    chat_too: tuple[Path, ...] = ()
    """More places, which some providers use."""
    responses: Path = ()
    messages: str = ""
    bedrock: str = ""
    cohere: str = ""
    metric: str = ""
    """Its `kind` in the metric `callgate_tokens_total`."""
    span: str = ""
    """Its attribute in the span of a turn, by OpenTelemetry's conventions for GenAI."""
    column: str = ""
    """Its column in recorded runs."""
    price: str = ""
    """The field of `Price`, for a part with a price of its own."""


COUNTS: Final = (
    TokenCount(
        name="prompt",
        chat=(("prompt_tokens",),),
        responses=("input_tokens",),
        messages="input_tokens",
        bedrock="inputTokens",
        cohere="input_tokens",
        metric="prompt",
        span="gen_ai.usage.input_tokens",
        column="tokens_in",
    ),
    TokenCount(
        name="completion",
        chat=(("completion_tokens",),),
        responses=("output_tokens",),
        messages="output_tokens",
        bedrock="outputTokens",
        cohere="output_tokens",
        metric="completion",
        span="gen_ai.usage.output_tokens",
        column="tokens_out",
    ),
    TokenCount(
        name="cached",
        part_of="prompt",
        chat=(("prompt_tokens_details", "cached_tokens"), ("cache_read_input_tokens",)),
        responses=("input_tokens_details", "cached_tokens"),
        messages="cache_read_input_tokens",
        bedrock="cacheReadInputTokens",
        metric="cached",
        span="gen_ai.usage.cache_read.input_tokens",
        column="tokens_cached",
        price="cached",
    ),
    TokenCount(
        name="cache_written",
        part_of="prompt",
        chat=(("cache_creation_input_tokens",),),
        chat_too=(
            ("prompt_tokens_details", "cache_creation_tokens"),
            ("prompt_tokens_details", "cache_write_tokens"),
        ),
        responses=("input_tokens_details", "cache_write_tokens"),
        messages="cache_creation_input_tokens",
        bedrock="cacheWriteInputTokens",
        metric="cache_written",
        span="gen_ai.usage.cache_creation.input_tokens",
        column="tokens_cache_written",
        price="cache_written",
    ),
    TokenCount(
        name="reasoning",
        part_of="completion",
        chat=(("completion_tokens_details", "reasoning_tokens"),),
        responses=("output_tokens_details", "reasoning_tokens"),
        metric="reasoning",
        span="gen_ai.usage.reasoning.output_tokens",
        column="tokens_reasoning",
    ),
)


class TokenCounts(NamedTuple):
    """The counts of a report, in the order of the table."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The tokens of a turn or of several, as a report in the form of Chat Completions.

    The report is the provider's own, with fields that nobody here knows, or is made from another API's.
    """

    report: Mapping[str, Any] = msgspec.field(name="counts")

    @classmethod
    def of(cls, prompt: int, completion: int) -> Self:
        """Return a report of the two counts that every provider has."""
        return cls({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})

    @classmethod
    def of_chat(cls, report: Any) -> Self | None:
        """Take a provider's report as it is; None for one that is empty or no object."""
        if report and isinstance(report, dict):
            return cls(report)
        return None

    @classmethod
    def of_api(cls, api: Api, counts: Mapping[str, Any]) -> Self:
        """Convert the counts of another API. Messages and Bedrock do not include the parts of a prompt in its tokens."""
        tokens = {row.name: _whole(counts.get(name)) for row, name in _NAMES[api]}
        parts = [row for row in COUNTS if row.part_of and row.name in tokens]
        beside = sum(tokens[row.name] for row in parts if row.part_of == "prompt")
        usage = cls.of(tokens["prompt"] + beside, tokens["completion"])
        report = dict(usage.report)
        if any(tokens[row.name] for row in parts):
            for row in parts:
                for path in row.chat:
                    _put(report, path, tokens[row.name])
        uses = counts.get(HOSTED_USES)
        if isinstance(uses, dict) and uses:
            report[HOSTED_USES] = {name: count for name, count in uses.items() if type(count) is int}
        return cls(report)

    @classmethod
    def of_responses(cls, counts: Mapping[str, Any]) -> Self:
        """Convert the counts of the Responses API. Their details are those of Chat Completions under other names, and are kept
        whether they are in the table or not."""
        report = dict(cls.of(_whole(counts.get("input_tokens")), _whole(counts.get("output_tokens"))).report)
        if type(total := counts.get("total_tokens")) is int:
            report["total_tokens"] = total
        for theirs, name in _DETAILS.items():
            if isinstance(details := counts.get(theirs), dict) and details:
                report[name] = {field: tokens for field, tokens in details.items() if type(tokens) is int}
        return cls(report)

    def counts(self) -> TokenCounts:
        """Return the counts of the table; 0 for each that is missing or no number."""
        return counts_fast(self.report) or self.counts_of_any()

    def counts_of_any(self) -> TokenCounts:
        """Look at every place that the table has."""
        counts = [0] * len(COUNTS)
        for name, fields in _GROUPS:
            group = self.report.get(name) if name else self.report
            if group and isinstance(group, dict):
                for place, field in fields:
                    tokens = group.get(field)
                    if tokens and not counts[place]:
                        counts[place] = (
                            tokens if type(tokens) is int and 0 < tokens <= MOST_TOKENS else _bounded(tokens)
                        )
        return TokenCounts(*counts)

    def hosted_uses(self) -> int | None:
        """Return how often the provider ran tools of its own; None where it says nothing of it."""
        uses = self.report.get(HOSTED_USES)
        if not isinstance(uses, dict):
            return None
        return sum(_bounded(count) for count in uses.values())

    def total(self) -> int:
        """Return all tokens."""
        return _bounded(self.report.get("total_tokens")) or sum(self.counts()[:2])

    def whole(self) -> dict[str, Any]:
        """Return the report for a client of Chat Completions, which expects all three counts."""
        return {**_NOTHING, **self.report}

    def in_responses(self) -> dict[str, Any]:
        """Return the counts for a client of the Responses API. Details are never missing, because clients fail without them."""
        counts = self.counts()
        report: dict[str, Any] = {}
        for name, whole, parts in _RESPONSES:
            if whole is None:
                report[name] = {field: counts[place] for field, place in parts}
            else:
                report[name] = counts[whole]
        report["total_tokens"] = self.report.get("total_tokens") or counts.prompt + counts.completion
        return report

    def in_messages(self) -> dict[str, int]:
        """Return the counts for a client of the Messages API, whose input tokens do not include those read from a cache or
        written to one."""
        counts = self.counts()
        report = dict(zip(_MESSAGES, _in_messages(counts), strict=True))
        report["input_tokens"] = max(0, counts.prompt - sum(_beside_input(counts)))
        return report

    def attributes(self) -> dict[str, int]:
        """Return the attributes of a span: the counts that the provider reported."""
        rows = zip(COUNTS, self.counts(), strict=True)
        return {row.span: tokens for row, tokens in rows if row.span and (tokens or self._has(row))}

    def _has(self, row: TokenCount) -> bool:
        for path in (*row.chat, *row.chat_too):
            value: Any = self.report
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                return True
        return False


NO_USAGE: Final = Usage({})


def add_usage(reports: Iterable[Usage | None]) -> Usage | None:
    """Return the sum of all reports, details included; None when no turn reported anything."""
    total: dict[str, Any] | None = None
    for usage in reports:
        if usage is not None and usage.report:
            if total is None:
                total = usage.whole()
            else:
                total = _add(total, usage.report)
    if total is None:
        return None
    return Usage(total)


_NOTHING: Final = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
"""The counts that every sum has."""


def _add(total: dict[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Add a report: numbers are summed, inner objects added field by field, anything else is replaced."""
    for key, value in report.items():
        before = total.get(key)
        if type(value) is int and (before is None or type(before) is int):
            total[key] = value if before is None else before + value
        elif isinstance(value, dict):
            total[key] = _add(dict(before) if isinstance(before, dict) else {}, value)
        elif _is_number(value) and _is_number(before):
            total[key] = before + value
        elif value is not None or key not in total:
            total[key] = value
    return total


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any) -> int:
    """Return a provider's count; Cohere writes them with a fraction of 0."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is int:
        return value
    return 0


def _bounded(value: Any) -> int:
    """Return a count that may be any value of JSON, at least 0 and at most `MOST_TOKENS`."""
    if type(value) is float and math.isfinite(value):
        value = int(value)
    if type(value) is int:
        return min(max(value, 0), MOST_TOKENS)
    return 0


def _put(report: dict[str, Any], path: Path, tokens: int) -> None:
    for name in path[:-1]:
        report = report.setdefault(name, {})
    report[path[-1]] = tokens


# What follows from the table: `place` is that of a count in it

_NAMES: Final[Mapping[Api, tuple[tuple[TokenCount, str], ...]]] = {
    "messages": tuple((row, row.messages) for row in COUNTS if row.messages),
    "bedrock": tuple((row, row.bedrock) for row in COUNTS if row.bedrock),
    "cohere": tuple((row, row.cohere) for row in COUNTS if row.cohere),
}


def _grouped() -> dict[str, list[tuple[int, str]]]:
    groups: dict[str, list[tuple[int, str]]] = {}
    for place, row in enumerate(COUNTS):
        for path in (*row.chat, *row.chat_too):
            groups.setdefault(path[0] if len(path) > 1 else "", []).append((place, path[-1]))
    return groups


_GROUPS: Final = tuple((name, tuple(fields)) for name, fields in _grouped().items())
"""The objects in a report that have counts, and their fields; the report itself has no name."""
_DETAILS: Final = {
    row.responses[0]: path[0] for row in COUNTS for path in row.chat if len(row.responses) == 2 and len(path) == 2
}
"""The names in a report of the objects with details in the Responses API."""


def _for_responses() -> Iterator[tuple[str, int | None, list[tuple[str, int]]]]:
    groups: dict[str, list[tuple[str, int]]] = {}
    for place, row in sorted(enumerate(COUNTS), key=lambda entry: entry[1].responses[:1]):
        if row.responses:
            groups.setdefault(row.responses[0], []).append((row.responses[-1], place))
    for name, fields in groups.items():
        first, place = fields[0]
        if first == name:
            yield name, place, []
        else:
            yield name, None, fields


_RESPONSES: Final = tuple(_for_responses())
"""Input before output, and the details of each behind it: the name, the place of a whole, and the fields of details."""
_FOR_MESSAGES: Final = sorted(
    ((row.part_of is not None, row.messages, place) for place, row in enumerate(COUNTS) if row.messages)
)
"""Wholes before parts."""
_MESSAGES: Final = tuple(name for _, name, _ in _FOR_MESSAGES)
_in_messages: Final[Callable[[TokenCounts], tuple[int, ...]]] = itemgetter(*(place for _, _, place in _FOR_MESSAGES))
_beside_input: Final[Callable[[TokenCounts], tuple[int, ...]]] = itemgetter(
    *(place for place, row in enumerate(COUNTS) if row.messages and row.part_of == "prompt")
)


def _report_type() -> Any:
    """Return the type of a report in the usual form, for a check by msgspec: each in Python takes three times as long."""
    groups: list[Any] = []
    for name, fields in _GROUPS:
        own = [(field, _Count, 0) for _, field in fields]
        if name:
            details = msgspec.defstruct(name, own, frozen=True, gc=False)
            groups.append((name, details, details()))
        else:
            groups += own
    return msgspec.defstruct("_Report", groups, gc=False)


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
_Report: Final = _report_type()
_first: Final[Callable[[Any], tuple[int, ...]]] = attrgetter(*(".".join(row.chat[0]) for row in COUNTS))
_FURTHER: Final = tuple((place, path) for place, row in enumerate(COUNTS) for path in (*row.chat[1:], *row.chat_too))
_further: Final[Callable[[Any], tuple[int, ...]]] = attrgetter(*(".".join(path) for _, path in _FURTHER))
_ALL_OF_MANY: Final = frozenset(_NOTHING)
"""All that servers of local models report."""


def counts_fast(report: Mapping[str, Any]) -> TokenCounts | None:
    """Equals `Usage.counts_of_any` for every report, or returns None. For one in the usual form, with one place for a count."""
    if report.keys() <= _ALL_OF_MANY:
        prompt = report.get("prompt_tokens", 0)
        completion = report.get("completion_tokens", 0)
        if type(prompt) is type(completion) is int and 0 <= prompt <= MOST_TOKENS and 0 <= completion <= MOST_TOKENS:
            return TokenCounts(prompt, completion)
    try:
        usual = msgspec.convert(report, _Report)
    except msgspec.ValidationError:
        return None
    if any(_further(usual)):
        return None
    return TokenCounts(*_first(usual))


COLUMNS: Final = {row.column: place for place, row in enumerate(COUNTS) if row.column}
"""The columns of recorded runs, and the place of each in `TokenCounts`."""
METRICS: Final = tuple(row.metric for row in COUNTS)
"""The kind in metrics of each of `TokenCounts`; empty for one that is not there."""
