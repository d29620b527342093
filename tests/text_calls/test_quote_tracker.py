"""How a text quotes, told to the tracker as prose and calls in their order."""

import re
from dataclasses import dataclass

from callgate.text_calls.quoting import (
    BLOCK_QUOTE,
    FENCED,
    HTML,
    INLINE_CODE,
    INVENTED_TURN,
    QUOTATION,
    TABLE,
    THINKING,
    QuoteTracker,
)
from tests.text_calls.reading import batched


@dataclass
class Call:
    quoted: str | None = None


def tracked(text, *, is_cut=False):
    """A tracker that has read a text, with a call at each `@`; `@{…}` is a broken one with this text."""
    tracker = QuoteTracker()
    calls = []
    at = 0
    for mark in re.finditer(r"@(?:\{([^}]*)\})?", text):
        tracker.feed(text[at : mark.start()])
        calls.append(Call())
        tracker.add_call(calls[-1], mark[1] or "")
        at = mark.end()
    tracker.feed(text[at:])
    tracker.finish(is_cut=is_cut)
    return tracker, [call.quoted for call in calls]


@batched(
    ("text", "quoted"),
    [
        ("@", [None]),
        ("`@`", [INLINE_CODE]),
        ("``@`", [None]),
        ("`a`@`b`", [None]),
        ("``@` @``", [INLINE_CODE, INLINE_CODE]),
        ("`a\n@\nb`", [INLINE_CODE]),
        ("`a\n\n@\n\nb`", [None]),
        ("> @\n@", [BLOCK_QUOTE, None]),
        ("- > @", [BLOCK_QUOTE]),
        ("| a | @ |", [TABLE]),
        ("a | @", [TABLE]),
        ("a |@", [TABLE]),
        ("“@”", [QUOTATION]),
        ("„@”", [QUOTATION]),
        ("»@«", [QUOTATION]),
        ("“a” @ “b”", [None]),
        ('"@"', [QUOTATION]),
        ('24" @ wide "x"', [None]),
        ("it's @ don't", [None]),
        ("'@'", [QUOTATION]),
        ("“a ‘@’ b”", [QUOTATION]),
        ("“a\n\n@”", [None]),
        ("<pre>\n\n@\n</pre>", [HTML]),
        ("<pre>@\n\n", [None]),
        ("<b><i>@</b></i>", [HTML]),
        ("<br/>@</br>", [None]),
        ("<!-- @ -->", [HTML]),
        ("<thought>@</thought>", [THINKING]),
        ("<tool_result>@</tool_result>", [THINKING]),
        ("```\nx\n@\n```", [FENCED]),
        ("```\n@\nx\n```", [FENCED]),
        ("```\n@\n```", [None]),
        ("```x y\n@\n```", [None]),
        ("a ```x y\n@\n```", [None]),
        ("````\n```\n@\n```\n````", [FENCED]),
        ("```\n@\n~~~\n```", [FENCED]),
        ("```\n@ ```\n@\n```", [None, None]),
        ("~~~\n@", [None]),
        ("~~~\nx\n@", [FENCED]),
        ("- a\n  ```\n  @\n  ```", [None]),
        ("```\n@\n```<|im_end|>\n", [None]),
        ("```\n@\n```\n\n```\nx\n@\n```", [None, FENCED]),
        ("```\n@{ “ }\n@\n```\n”", [None, None]),
        ("a |@@", [TABLE, None]),
        ("> “a\n@”", [None]),
        ("“a\n- @”", [None]),
        ("`a\n1. @`", [None]),
        ("“a\n> x\n@”", [None]),
        ("“a\n```\n@\n```\n”", [None]),
        ("```a` @ ```", [INLINE_CODE]),
        ("~~~a`b\n@\n~~~", [None]),
        ("a ```b c\n@\n```", [None]),
        ("```\n- @\n```", [None]),
        ("```\n- x @\n```", [FENCED]),
        ("```\n@;\n@\n  ```\n@", [None, None, None]),
        ("```\n@\n- ```\nx @", [FENCED, FENCED]),
        ("```\n@ x\n```", [FENCED]),
        ("```\n```\n“@”", [QUOTATION]),
        ("   \n“@”", [QUOTATION]),
        ("<|im_start|>user\n@", [INVENTED_TURN]),
        ("Say <|im_start|>user to @", [None]),
        ("`<|im_start|>user` @", [None]),
        ("@<tool_response>x</tool_response>@", [None, INVENTED_TURN]),
        ("<tool_response>x</tool_response>@", [None]),
    ],
)
def test_what_quotes_a_call(text, quoted):
    assert tracked(text)[1] == quoted


@batched(("text", "quoted"), [("`@", [INLINE_CODE]), ("“@", [QUOTATION]), ("<pre>@", [HTML]), ("“a”@", [None])])
def test_in_a_text_that_was_cut_what_is_open_quotes(text, quoted):
    assert tracked(text)[1] == [None]
    assert tracked(text, is_cut=True)[1] == quoted


def test_a_broken_call_opens_what_its_text_opens():
    assert tracked("@{ “ } @ ”")[1] == [None, QUOTATION]


def test_behind_a_broken_call_that_took_the_line_of_a_fence_the_next_fence_may_close_around_calls():
    assert tracked("@{a\n```\n# so:}\n@\n```\n")[1] == [None, FENCED]
    assert tracked("@{a ``` b}\n@\n")[1] == [None, None]
    assert tracked("@{a}\n@\n```\n")[1] == [None, None]


def test_the_lines_of_fences_of_calls_alone_are_markup():
    text = "So:\n```json\n@\n```\nAnd:\n- ~~~\n  @\n  ~~~"
    tracker, quoted = tracked(text)
    assert quoted == [None, None]
    prose = text.replace("@", "")
    assert [prose[start:end] for start, end in tracker.markup] == ["```json\n", "```", "~~~\n", "~~~"]


def test_the_lines_of_fences_are_cut_without_a_marker_before_them():
    for text, lines in (
        ("  ```\n  @\n  ```\n", ["  ```\n", "```"]),
        ("- ```\n@\n```<|im_end|>\n", ["```\n", "```<|im_end|>"]),
        ("So: ```json\n@\n```", ["```json\n", "```"]),
        ("“a”\n```\n@", ["```\n", ""]),
    ):
        tracker, quoted = tracked(text)
        prose = text.replace("@", "")
        assert quoted == [None]
        assert [prose[start:end] for start, end in tracker.markup] == lines


@batched(
    ("text", "expected"),
    [
        ("a", None),
        ("`a ", INLINE_CODE),
        ("`a\nb", None),
        ("“", QUOTATION),
        ("“a", None),
        ("| a", TABLE),
        ("a |", TABLE),
        ("> a", BLOCK_QUOTE),
        ("<pre>\n\na", HTML),
        ("a <b>\n", None),
        ("a <b> ", HTML),
        ("```\n", FENCED),
        ("```", FENCED),
        ("```\nx\n```\n", None),
    ],
)
def test_how_a_mark_may_be_quoted(text, expected):
    tracker = QuoteTracker()
    tracker.feed(text)
    assert tracker.quoted() == expected
    tracker.begin_message()
    assert tracker.quoted() is None
