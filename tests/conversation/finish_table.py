"""What finish reasons mean: every value that a provider documents, and words that servers send or may invent.

The tests of the words and of the lanes read the same table, so that a word means the same in both.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

from callgate.conversation.finish_words import FinishClass, Meaning


class Expected(Enum):
    """What becomes of a turn with a finish reason."""

    STOP = Meaning(FinishClass.STOP)
    TOOL_CALLS = Meaning(FinishClass.TOOL_CALLS)
    LENGTH = Meaning(FinishClass.LENGTH)
    FILTER = Meaning(FinishClass.CONTENT_FILTER)
    FAILED = Meaning(FinishClass.ERROR)
    UNKNOWN_LENGTH = Meaning(FinishClass.LENGTH, is_known=False)
    UNKNOWN = Meaning(FinishClass.ERROR, is_known=False)

    @property
    def meaning(self) -> Meaning:
        return self.value


def _table(**words: str) -> Mapping[str, Expected]:
    return {word: Expected[name] for name, of_name in words.items() for word in of_name.split()}


OPEN_WORDS = _table(
    STOP="""
        stop end_turn eos eos_token stop_sequence complete completed end STOP END-TURN Eos done done_ok finish finished
        COMPLETE STOP_SEQUENCE finished.ok success normal normal_completion eosFound eot eot_id eom im_end end_of_turn
        stop:user endTurn stop-token Completed
    """,
    TOOL_CALLS="""
        tool_calls tool_call tool_use function_call function_calls Function_Call TOOL-CALLS TOOL_CALL tool.calls toolCalls toolUse
        functionCall tool function tool_use_done function:call:1 TOOL tool-use.
    """,
    LENGTH="""
        length max_tokens max_output_tokens max_completion_tokens model_length model_context_window_exceeded MAX_TOKENS
        model-context-window-exceeded Length
    """,
    FILTER="""
        content_filter content_filtered safety recitation refusal guardrail_intervened blocklist prohibited_content
        sensitive SAFETY SPII RECITATION BLOCKLIST PROHIBITED_CONTENT IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION content-filter blocked refused
        harmful harm toxicity stopped_by_policy contentFilter
    """,
    FAILED="""
        error abort aborted failed network_error malformed_function_call insufficient_system_resource
        ERROR ERROR_LIMIT ERROR_TOXIC TIMEOUT MALFORMED_FUNCTION_CALL MALFORMED_RESPONSE UNEXPECTED_TOOL_CALL FINISH_REASON_UNSPECIFIED malformed_model_output
        malformed_tool_use cancelled timeout incomplete partial denied exceeded killed crashed quota
        insufficient_quota tool_use_failed completed_with_errors content_length_exceeded stop_failed deny
        invalidOutput interrupted overloaded unavailable safety_error max_retries_error USER_CANCEL
    """,
    UNKNOWN_LENGTH="""
        max_new_tokens maxOutputTokens CONTEXT_OVERFLOW token-limit truncated FINISH_REASON_MAX max_retries rate_limit
        length_cap context
    """,
    UNKNOWN="""
        LANGUAGE OTHER TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE NO_IMAGE IMAGE_OTHER ESCALATION MODEL_ARMOR
        moderation flagged unsafe rejected exception evicted preempted terminated exhausted capacity repetition
        engine_dead disconnected unfinished jailbreak violation copyright compaction pause_turn
        plenty successful stopped ended toolcalls tool_choice function_name not_stop un_stop null None 0 1 ok
    """,
)
"""On OpenAI-shaped lanes. Among the unknown and failed ones are the words beside which calls used to run."""

UNHEARD_OF: Sequence[str] = (
    "gesprächsende", "конец", "終了", "fin", "zzz", "x" * 150, "stopp", "tool_cal", "finnish", "{}x", "a b c",
    '{"type": "stop"}', "¿?x", "over_and_out",
)  # fmt: skip
WITHOUT_WORDS: Sequence[str] = ("", " ", "-", "...", "___", "\n", "{}", "[]", "?!", "—")


def normal(word: str) -> str:
    return word.lower().replace("-", "_")


_CLAUDES = _table(
    STOP="end_turn stop_sequence",
    TOOL_CALLS="tool_use",
    LENGTH="max_tokens model_context_window_exceeded compaction",
    FILTER="refusal",
)
_GOOGLES = _table(
    STOP="STOP",
    LENGTH="MAX_TOKENS",
    FILTER="SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION"
    " MODEL_ARMOR content_filter",
    FAILED="MALFORMED_FUNCTION_CALL MALFORMED_RESPONSE UNEXPECTED_TOOL_CALL FINISH_REASON_UNSPECIFIED",
    UNKNOWN="LANGUAGE OTHER TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE NO_IMAGE IMAGE_OTHER ESCALATION",
)
DOCUMENTED: Mapping[str, Mapping[str, Expected]] = {
    "anthropic": _CLAUDES,
    "messages": _CLAUDES,
    "gemini": _GOOGLES,
    "vertex_ai": _GOOGLES,
    "bedrock": _table(
        STOP="end_turn stop_sequence",
        TOOL_CALLS="tool_use",
        LENGTH="max_tokens model_context_window_exceeded",
        FILTER="guardrail_intervened content_filtered refusal",
        FAILED="malformed_model_output malformed_tool_use",
    ),
    "cohere": _table(
        STOP="COMPLETE STOP_SEQUENCE",
        TOOL_CALLS="TOOL_CALL",
        LENGTH="MAX_TOKENS",
        FILTER="ERROR_TOXIC",
        FAILED="ERROR ERROR_LIMIT TIMEOUT USER_CANCEL",
    ),
    "responses": _table(LENGTH="max_output_tokens max_tokens length", FILTER="content_filter"),
}
"""Of the providers with an API of their own; any other word is unknown there. That of the Responses API is the reason of an
incomplete response."""

ALL_WORDS: Sequence[str] = tuple(
    dict.fromkeys([*OPEN_WORDS, *UNHEARD_OF, *(word for words in DOCUMENTED.values() for word in words)])
)


def expected_on(provider: str, word: str) -> Expected:
    """What becomes of a turn with this finish reason at a provider."""
    if provider in DOCUMENTED:
        known = {normal(documented): expected for documented, expected in DOCUMENTED[provider].items()}
        return known.get(normal(word), Expected.UNKNOWN)
    return OPEN_WORDS.get(word, Expected.UNKNOWN)
