"""The end of a text decides which of its calls count: lists of items, and what is made of them."""

import pytest

from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.judging import NESTED, TextRules, judge, judge_nested
from callgate.text_calls.nesting import Torn
from callgate.text_calls.quoting import BLOCK_QUOTE, INVENTED_TURN, THINKING, QuoteTracker
from callgate.text_calls.text_log import CALLS, REASONING, TEXT, Item


def calls(text="<call/>", quoted=None):
    return Item(CALLS, text, calls=[CallWritten("get_time", "{}", from_text=True)], quoted=quoted)


def judged(items, rules=None, is_echo=lambda item: False):
    tracker = QuoteTracker()
    for item in items:
        if item.kind == TEXT:
            tracker.feed(item.text)
        elif item.kind == CALLS:
            tracker.add_call(item)
    tracker.finish()
    judgement = judge(items, tracker, rules or TextRules(), is_echo)
    return judgement, [call.is_alone for item in judgement.items if item.reason is None for call in item.calls]


@pytest.mark.parametrize("behind", ["", "\n\n", "<|im_end|>", "<!-- so -->", "</tools>"])
def test_calls_at_the_end_count_whatever_stands_before(behind):
    judgement, alone = judged(
        [Item(TEXT, "For example:\n\n"), calls(), Item(TEXT, " and "), calls(), Item(TEXT, behind)]
    )
    assert alone == [True, True]
    assert judgement.as_written == ""


def test_behind_prose_none_counts_and_the_text_is_kept_as_it_was_written():
    items = [Item(REASONING, "hm"), Item(TEXT, "See "), calls(), Item(TEXT, " and so.")]
    judgement, alone = judged(items)
    assert alone == [False]
    assert judgement.as_written == "See <call/> and so."


def test_formats_of_special_tokens_do_not_look_behind():
    assert judged([calls(), Item(TEXT, "So.")], TextRules(looks_behind=False))[1] == [True]
    assert judged([calls("<|t|>"), Item(TEXT, "So.")], TextRules(tokens=("<|t|>",)))[1] == [True]


def test_a_quoted_call_and_an_echo_are_text():
    items = [Item(TEXT, "> "), calls(), Item(TEXT, "\n\n"), calls("<echo/>")]
    judgement, alone = judged(items, is_echo=lambda item: item.text == "<echo/>")
    assert alone == []
    assert [item.reason for item in judgement.items] == [None, BLOCK_QUOTE, None, "echo"]


def test_a_fence_and_a_marker_around_calls_alone_go_with_them():
    items = [Item(TEXT, "So:\n\n```json\n"), calls(), Item(TEXT, "\n```\n- "), calls()]
    judgement, alone = judged(items)
    assert alone == [True, True]
    assert [item.text.strip() for item in judgement.items if item.kind == TEXT] == ["So:", ""]


def reasons(judgement):
    return [item.reason for item in judgement.items if item.kind == CALLS]


def texts(judgement):
    return [item.text for item in judgement.items if item.kind == TEXT]


def test_what_a_quoted_call_says_behind_the_last_one_is_prose():
    items = [calls(), Item(TEXT, "\n> "), calls(), Item(TEXT, "\n")]
    judgement, alone = judged(items)
    assert alone == [False]
    assert judgement.as_written == "<call/>\n> <call/>\n"


def test_what_an_invented_turn_says_behind_the_calls_is_none():
    behind = "\n<|im_start|>user\nGo on.<|im_end|>\n"
    assert judged([Item(TEXT, "So: "), calls(), Item(TEXT, behind)])[1] == [True]
    assert judged([Item(TEXT, "So: "), calls(), Item(TEXT, f"\nYes.{behind}")])[1] == [False]
    judgement, alone = judged([calls(), Item(TEXT, behind), calls(), Item(TEXT, "Done.")])
    assert alone == [True]
    assert reasons(judgement) == [None, INVENTED_TURN]


def test_an_end_mark_of_calls_is_no_prose_behind_them():
    block = calls()
    assert judged([block, Item(TEXT, "\n"), Item(CALLS, "</calls>", part_of=block)])[1] == [True]


@pytest.mark.parametrize(
    ("before", "behind", "is_alone"),
    [
        ("<tools>\n", "\n</tools>", True),
        ("<my_calls kind='a'>", "</my_calls>\n", True),
        ("<my_calls> These:\n", "</my_calls>", False),
        ("<others>", "</my_calls>", False),
        ("", "</my_calls>", False),
        ("", "</my_calls", False),
    ],
)
def test_the_end_tag_of_a_wrapper_around_calls_alone_is_no_prose(before, behind, is_alone):
    items = [Item(TEXT, f"So.\n{before}"), calls(), Item(TEXT, "\n"), calls(), Item(TEXT, behind)]
    assert judged(items)[1] == [is_alone, is_alone]


def test_calls_before_a_later_lone_end_of_thinking_are_thinking():
    items = [calls(), Item(TEXT, "No.\n</think>\n"), calls(), Item(TEXT, " The </think> tag.\n<!-- so -->")]
    assert reasons(judged(items)[0]) == [THINKING, None]
    assert reasons(judged([Item(REASONING, "\n</think>"), calls()])[0]) == [None]
    assert reasons(judged([calls(quoted=BLOCK_QUOTE), Item(TEXT, "\n</thinking>")])[0]) == [BLOCK_QUOTE]


def test_calls_inside_the_text_of_another_are_a_part_of_it():
    broken = Item(CALLS, "<tool_call>\n{ <tool_call>", calls=[CallWritten("get_time", flaw=Flaw.INVALID_JSON)])
    inside, behind = calls("<tool_call>a</tool_call>"), calls()
    items = [
        Item(REASONING, "</tool_call>"),
        broken,
        Item(TEXT, "x"),
        inside,
        Item(TEXT, "</tool_call></tool_call>"),
        behind,
    ]
    judge_nested(items)
    assert [item.quoted for item in (broken, inside, behind)] == [None, NESTED, None]


def test_a_call_that_ends_behind_what_its_reader_took_for_its_end_is_broken():
    whole = calls("<invoke ><invoke >x</invoke>")
    judge_nested([whole, Item(TEXT, "y</invoke>")])
    assert [(call.arguments, call.flaw) for call in whole.calls] == [(None, Flaw.INVALID_MARKUP)]
    whole = calls("<invoke ><invoke >x</invoke>")
    judge_nested([whole, Item(TEXT, "y")])
    assert whole.is_whole


def test_calls_in_a_value_that_an_end_of_thinking_tore_are_nested():
    items = [Item(REASONING, "x" * 40), calls(), Item(TEXT, "</tool_call>"), calls("<other/>", BLOCK_QUOTE), calls()]
    judge_nested(items, Torn('<tool_call>{"a": "'))
    assert [item.quoted for item in items] == [None, NESTED, None, BLOCK_QUOTE, None]


def test_only_the_first_call_of_a_text_counts_where_the_format_says_so():
    items = [Item(TEXT, "a"), calls("<1/>"), calls("<2/>"), calls("<3/>")]
    assert [item.text for item in judged(items, TextRules(only_first=True))[0].items] == ["a", "<1/>"]


def test_a_call_is_an_echo_only_if_it_is_whole_and_not_quoted():
    broken = Item(CALLS, "<call", calls=[CallWritten("get_time", flaw=Flaw.TRUNCATED)])
    items = [Item(TEXT, "> "), calls(), Item(TEXT, "\n\n"), calls(), broken]
    assert reasons(judged(items, is_echo=lambda item: True)[0]) == [BLOCK_QUOTE, "echo", None]


@pytest.mark.parametrize(
    ("before", "behind", "expected"),
    [
        ("So:\n- ", "\n", "So:\n"),
        ("So:\n  1. - ", "", "So:\n"),
        ("So:\n- ", " x", "So:\n- "),
        ("So - ", "\n", "So - "),
        ("- ", "\n", ""),
        ("So:\n- x ", "\n", "So:\n- x "),
    ],
)
def test_the_marker_of_an_item_of_calls_alone_goes_with_them(before, behind, expected):
    judgement, _ = judged([Item(TEXT, before), calls(), Item(TEXT, behind)], TextRules(looks_behind=False))
    assert texts(judgement)[0] == expected


def test_a_marker_is_only_one_at_the_beginning_of_a_line():
    items = [Item(TEXT, "- "), calls(), Item(TEXT, "\n")]
    tracker = QuoteTracker()
    tracker.feed("Take this: - ")
    tracker.add_call(items[1])
    tracker.feed("\n")
    tracker.finish()
    assert texts(judge(items, tracker, TextRules(), lambda _: False, begins_line=False))[0] == "- "


def test_fences_are_cut_out_where_they_stand_in_all_of_the_prose():
    """The tracker has read more than the items that are left to judge."""
    items = [Item(TEXT, "```\n"), calls(), Item(TEXT, "\n```\n\n```\n"), calls(), Item(TEXT, "\n```")]
    tracker = QuoteTracker()
    tracker.feed("Emitted before.\n")
    for item in items:
        if item.kind == TEXT:
            tracker.feed(item.text)
        else:
            tracker.add_call(item)
    tracker.finish()
    assert texts(judge(items, tracker, TextRules(), lambda _: False)) == ["", "\n\n\n", "\n"]
