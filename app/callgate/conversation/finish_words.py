"""The meanings of finish reasons.

Only a word that is known to say so is a good end. What we do not know did not end in order, and no call beside it runs
(rule F1 of `tests/corpus/README.md`).
"""

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec
from msgspec.structs import force_setattr


class FinishClass(IntEnum):
    """The class of a finish reason. When a turn has several, the highest counts."""

    STOP = 0
    TOOL_CALLS = 1
    LENGTH = 2
    CONTENT_FILTER = 3
    ERROR = 4


class Meaning(msgspec.Struct, frozen=True, gc=False):
    """What a finish reason says."""

    kind: FinishClass
    is_known: bool = True
    """False where the word does not say whether the turn ended in order: no call of it runs, but the deployment has not
    failed either."""

    is_orderly: bool = False
    """The turn ended in order. Follows from the others."""

    def __post_init__(self) -> None:
        force_setattr(self, "is_orderly", self.is_known and self.kind <= FinishClass.TOOL_CALLS)


_KNOWN: Mapping[FinishClass, Meaning] = {kind: Meaning(kind) for kind in FinishClass}
_UNKNOWN = Meaning(FinishClass.ERROR, is_known=False)
_UNKNOWN_LENGTH = Meaning(FinishClass.LENGTH, is_known=False)


def normalized(reason: str) -> str:
    """Return a finish reason in the spelling in which reasons are compared."""
    return reason.lower().replace("-", "_")


def is_value(reason: str) -> bool:
    """True if a finish reason has a word; one without says nothing, like a missing one."""
    return _WORD.search(reason) is not None


class FinishWords:
    """The finish reasons of one API, by class."""

    def __init__(self, words: Mapping[FinishClass, str], *, is_closed: bool) -> None:
        """`is_closed`: the provider has documented all its values, so that parts of another value mean nothing."""
        self.listed: Mapping[str, Meaning] = {
            normalized(word): _KNOWN[kind] for kind, of_kind in words.items() for word in of_kind.split()
        }
        self._is_closed = is_closed

    def judge(self, reason: str) -> Meaning:
        """Return the meaning of a finish reason as a provider wrote it."""
        meaning = self.listed.get(reason)
        if meaning is None:
            meaning = self.listed.get(normalized(reason))
        if meaning is None:
            if self._is_closed:
                return _UNKNOWN
            return judge_by_words(reason)
        return meaning


def further_words(named: Mapping[FinishClass, Sequence[str]]) -> Mapping[str, Meaning]:
    """Return the meanings of finish reasons that an operator names. Raises `ValueError` for one that is known to mean something
    else, or is named twice."""
    further: dict[str, Meaning] = {}
    for kind, words in named.items():
        for word in map(normalized, words):
            meaning = further.get(word) or OPEN.listed.get(word)
            if meaning is not None and meaning.kind is not kind:
                raise ValueError(f"finish_reasons: `{word}` cannot mean {_name(kind)}: it means {_name(meaning.kind)}")
            further[word] = _KNOWN[kind]
    return further


def _name(kind: FinishClass) -> str:
    return kind.name.lower()


OPEN = FinishWords(
    {
        FinishClass.STOP: "stop end_turn eos eos_token stop_sequence complete completed end",
        FinishClass.LENGTH: (
            "length max_tokens max_output_tokens max_completion_tokens model_length model_context_window_exceeded"
        ),
        FinishClass.TOOL_CALLS: "tool_calls tool_call tool_use function_call function_calls",
        FinishClass.CONTENT_FILTER: (
            "content_filter content_filtered safety recitation refusal guardrail_intervened blocklist"
            " prohibited_content sensitive"
        ),
        FinishClass.ERROR: (
            "error abort aborted failed network_error malformed_function_call insufficient_system_resource"
        ),
    },
    is_closed=False,
)
"""The finish reasons of OpenAI-shaped APIs, to which every server adds its own."""

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""The place between two words that are parted by a capital alone, as in `eosFound`."""
LONGEST = 200
"""Characters of a finish reason of which the words are judged. A longer one is text, and no word of any list."""

_STEMS: tuple[tuple[Meaning, tuple[str, ...]], ...] = (
    (
        _KNOWN[FinishClass.ERROR],
        (
            "error", "fail", "malform", "invalid", "abort", "cancel", "timeout", "interrupt", "insufficient", "overload",
            "unavailable", "unspecified", "unexpected", "partial", "incomplete", "exceed", "deny", "denied", "quota",
            "crash", "kill",
        ),
    ),
    (
        _KNOWN[FinishClass.CONTENT_FILTER],
        (
            "safety", "spii", "block", "prohibit", "filter", "recitation", "refus", "toxic", "sensitive", "guardrail",
            "policy", "harm",
        ),
    ),
    (_UNKNOWN_LENGTH, ("max", "length", "limit", "truncat", "context")),
)  # fmt: skip
"""Beginnings of words that give the meaning of an unlisted value, the most serious first. They do not say that a turn came
to its end, so that the last of them lets no call run either."""
_GOOD = frozenset("stop eos eot eom end done complete completed finish finished success normal im".split())
_CALLING = frozenset({"tool", "function"})
_CALLED = frozenset({"call", "calls", "use"})


def judge_by_words(reason: str) -> Meaning:
    """Return the meaning of a finish reason that is in no list."""
    if len(reason) > LONGEST:
        return _UNKNOWN
    words = [word.lower() for word in _WORD.findall(_HUMP.sub(" ", reason))]
    for meaning, stems in _STEMS:
        if any(word.startswith(stems) for word in words):
            return meaning
    if not words:
        return _UNKNOWN
    if words[0] in _GOOD:
        return _KNOWN[FinishClass.STOP]
    if words[0] in _CALLING and (len(words) == 1 or words[1] in _CALLED):
        return _KNOWN[FinishClass.TOOL_CALLS]
    return _UNKNOWN
