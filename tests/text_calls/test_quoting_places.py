"""Where a model's text quotes, and where it only looks like it: what an earlier quotation leaves open changes no later one."""

import re

import pytest

from callgate.conversation.events import TextDelta
from callgate.text_calls.formats import GRAMMARS
from tests.text_calls.reading import batched
from tests.text_calls.test_nested_calls import call_in_format
from tests.text_calls.test_quoted_calls import CALLS, events_of_pieces, runnable_calls, summary

# One of each kind: JSON, tags, keys, headers, marks without ends, a notation of its own.
FORMATS = ["hermes", "xml", "glm45", "kimi_k2", "mistral", "granite_20b_fc", "functiongemma", "tool_calls"]

QUOTING = {
    "a script tag": "<script>\n{}\n</script>",
    "a tag in a tag": "<details><pre>\n{}\n</pre></details>",
    "a tag within a line, closed on another": "Use <code>\n\n{}\n\n</code> for it.",
    "a thought": "<thought>\n{}\n</thought>\nNo.",
    "a scratchpad": "<scratchpad>\n\n{}\n\n</scratchpad>\nNo.",
    "a reflection": "<reflection>{}</reflection>\nNo.",
    "thinking of another format": "[THINK]\n{}\n[/THINK]\nNo.",
    "thinking of a third": "◁think▷\n{}\n◁/think▷\nNo.",
    "a tool's answer": "<tool_response>\n{}\n</tool_response>\nSo it says.",
    # What stands open before it hides no quotation.
    "a tag behind an open tick": "The ` sign.\n<pre>\n{}\n</pre>\n",
    "quotes behind an open tick": "The ` sign,\n“{}” it is.",
    "a fence behind a call in a fence that lacks its end": "```\n{cut}\n```\n\n```\n{}\n```\n",
    "a comment behind a broken call": "{broken}\n\n<!--\n\n{}\n\n-->\n",
    "a fence behind a broken call": "{broken}\n\n```\n{}\n```\n",
    "a fence with a remark beside the call": "```\n# deletes it\n{}\n```\n",
    "a fence with a remark behind the call": "```\n{}\nThis deletes it.\n```\n",
    "the second call between quotes": "He said “\n{call}\n{}\n” to me.",
}

MEANT = {
    "a lettered item": "a) {}",
    "an item in parentheses": "(1) {}",
    "a Roman item": "ii. {}",
    "an item behind a dash": "– {}",
    "an item behind another bullet": "◦ {}",
    "the inside of an item": "1. First\n   {}\n",
    "a fence behind an open tick": "The ` sign.\n```\n{}\n```\n",
    "a fence behind a fence": "```\nx\n```\n\n```\n{}\n```\n",
    "a fence behind a fence in a block quote": "> ```\n> x\n> ```\n\n```\n{}\n```\n",
    "a fence in an item behind a fence": "```\nx\n```\n\n1. x\n   ```\n   {}\n   ```\n",
    "behind quotation marks over paragraphs": "“First.\n\nLast.”\n{}",
    "behind a fence with a remark beside a call": "```\n# {call}\n```\n\n{}",
    "a tag that is only named": "Use the <code> tag.\n\n{}",
    "a block tag that is only named": "The <pre> tag is fine.\n{}",
    "a comment that is only named": "It begins with <!-- there.\n\n{}",
    "a fence that is only named": "Use ``` to open a fence.\n\n{}",
    "a thought that never closes": "<thought>I should look.\n\n{}",
    "quotes that never close": "“He said go.\n\n{}",
    "behind a list": "1. Look.\n2. Tell.\n{}",
    "behind an item's paragraph": "- Look\n\n  and tell.\n\n{}",
    "behind a fence in a line": "Like this: ```json\n{{}}\n```\nNow:\n\n{}",
    "behind a quoted call": "You could say `{call}`, but I say:\n\n{}",
    "behind a block quote with a fence": "> ```\n> x\n> ```\n\nNow:\n\n{}",
}


def text_of(template, format):
    other = call_in_format(format, "get_time")
    broken = call_in_format(format, "delete_all", path="PLACE").split("PLACE")[0]
    marks = {"{{}}": "{}", "{call}": other, "{cut}": broken, "{broken}": f"{broken}</x>", "{}": CALLS[format]}
    return re.sub(r"\{\{\}\}|\{\w*\}", lambda found: marks[found.group()], template)


@pytest.mark.parametrize("format", FORMATS)
@batched("place", QUOTING)
def test_what_is_quoted_does_not_run(format, place):
    text = text_of(QUOTING[place], format)
    whole = events_of_pieces(format, [text])
    assert runnable_calls(whole) == []
    assert summary(events_of_pieces(format, text)) == summary(whole)


@pytest.mark.parametrize("format", FORMATS)
@batched("place", MEANT)
def test_what_is_meant_runs(format, place):
    text = text_of(MEANT[place], format)
    whole = events_of_pieces(format, [text])
    assert [call.name for call in runnable_calls(whole)] == ["delete_all"]
    assert summary(events_of_pieces(format, text)) == summary(whole)


@batched("format", sorted(GRAMMARS.keys() & {"minimax", "dots", "xml", "deepseek_dsml", "step3"}))
def test_a_broken_call_ends_behind_the_calls_in_it(format):
    """Two calls in a raw value: the first broke the call around it, and the second is not the next one."""
    inner = CALLS[format]
    text = call_in_format(format, "write_file", path="a", content="PLACE").replace("PLACE", f"x\n{inner}\n\n{inner}\ny")
    text += f"\n\n{call_in_format(format, 'get_time')}"
    for pieces in ([text], text):
        assert [call.name for call in runnable_calls(events_of_pieces(format, pieces))] == ["get_time"]


@batched("format", ["hermes", "xml", "glm45", "kimi_k2", "tool_calls", "qwen3_coder", "minimax_m3"])
def test_an_end_of_thinking_in_a_value_ends_no_thinking(format):
    """A broken call whose value speaks of the tag, with a call behind it that is a part of the value."""
    outer = call_in_format(format, "write_file", path="a", content="PLACE")
    text = outer.replace("PLACE", f"</think>\n{CALLS[format]}\n")
    cut = f"{outer.split('PLACE')[0]}</think>\n{CALLS[format]}"
    for said in (text, f"```\n{cut}\n```\n", f"Use ``\n{cut}\n`` now.", f"He said “\n{cut}\n”."):
        for pieces in ([said], said):
            assert "delete_all" not in [call.name for call in runnable_calls(events_of_pieces(format, pieces))]


@batched("format", ["hermes", "xml", "glm45", "tool_calls", "qwen3_coder"])
def test_half_a_call_in_thinking_swallows_none_behind_it(format):
    half = (
        call_in_format(format, "delete_all", path="PLACE")
        .split("PLACE")[0]
        .rpartition("path")[0]
        .rstrip(' "{<=>k|_eyargnpmt:[')
    )
    for said in (f"I could {half} and so on.\n</think>\n\n", "I could say <tool_call> here.\n</think>\n\n"):
        for pieces in ([said + CALLS[format]], said + CALLS[format]):
            assert [call.name for call in runnable_calls(events_of_pieces(format, pieces))] == ["delete_all"]


NAMED = {"hermes": "<tool_call>", "tool_calls": "<tool_calls>", "glm45": "<tool_call>", "mistral": "[TOOL_CALLS]"}


@batched("format", NAMED)
def test_what_stands_behind_a_quoted_mark_is_read_again_for_marks_of_its_own(format):
    """The mark opens no call, and what it seemed to open has the one that is meant."""
    for mention in ("Use `{}` here.\n", "> {}\n\n", "Between “{}” and “{}” it stands.\n", "`{}` and `{}`:\n\n"):
        said = mention.replace("{}", NAMED[format])
        text = f"{said}{CALLS[format]}"
        for pieces in ([text], text):
            events = events_of_pieces(format, pieces)
            assert [call.name for call in runnable_calls(events)] == ["delete_all"], mention
            assert said.strip() in "".join(event.text for event in events if isinstance(event, TextDelta)), mention
