"""The end of a text decides which of its calls count: lists of items, and what is made of them."""

import pytest

from callgate.conversation.events import CallWritten
from callgate.text_calls.judging import TextRules, judge
from callgate.text_calls.quoting import BLOCK_QUOTE, QuoteTracker
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
