"""Where nothing marks a call, no call runs behind text that may be another one with this one in its value."""

import itertools

import pytest

from callgate.conversation.events import CallNotRun, TextDelta
from callgate.text_calls.reader import reader_for
from tests.text_calls.reading import batched
from tests.text_calls.test_nested_calls import CONTEXTS, PLACE, TOOLS, call_in_format, runnable_calls, values
from tests.text_calls.test_quoted_calls import BARE, CALLS, LINES

UNMARKED = sorted(BARE | LINES)
PLACES = {
    **CONTEXTS,
    "a sentence": "I could write {} but I will not.",
    "a sentence that ends there": "I could write {}",
    "a sentence on lines": "I could write {}\n\nbut I will not.",
    "a tag": "<b>{}</b>",
    "a tag over lines": "<b>\n{}\n</b>",
    "a tag of no HTML": "<draft>{}</draft>\n\nNo.",
    "a thought": "Thought: I could write {} but I will not.",
    "a title": "# {}",
    "brackets": "(as in {})",
    "a value": "draft = {}",
    "a colon": "x: {}",
    "a name": "save {}\n",
}


def quoted(format):
    """Calls in the middle of a line, with whole calls, unescaped, on lines of their own in their values."""
    outer = call_in_format(format, "write_file", path="a", content=PLACE)
    forms = {outer, outer.strip(), outer.strip().replace("\n", " "), outer.strip().removeprefix("<|start|>")}
    forms |= {form.removeprefix(" to=") for form in forms} | {form.removeprefix(">>>") for form in forms}
    inner = {**values(format), "two lines": f"\n{CALLS[format]}\n{CALLS[format]}\n", "a line": f"\n{CALLS[format]}\n"}
    for (name, value), form, (place, template) in itertools.product(inner.items(), sorted(forms), PLACES.items()):
        for cut in (False, True):
            call = form.split(PLACE)[0] + value if cut else form.replace(PLACE, value)
            yield (name, form, place, cut), template.replace("{}", call)


def events_of_pieces(format, pieces, thinking):
    reader = reader_for(format, TOOLS, thinking=thinking)
    return [event for piece in pieces for event in reader.feed(piece)] + reader.finish()


@pytest.mark.parametrize("format", UNMARKED)
def test_a_call_in_the_value_of_a_quoted_call_does_not_run(format):
    wrong = []
    for at, (name, text) in enumerate(quoted(format)):
        pieces = text if at % 7 == 0 else [text]
        if {each.name for each in runnable_calls(events_of_pieces(format, pieces, "unknown"))} - {"write_file"}:
            wrong.append(name)
    assert wrong == [], len(wrong)


@batched("format", ["litellm_json", "llama3_json"])
def test_braces_in_thinking_that_was_closed_quote_nothing(format):
    for thinking, text in (("none", "<think>{}</think>\n"), ("prefilled", "I use {}.\n</think>\n")):
        (call,) = runnable_calls(events_of_pieces(format, [text + CALLS[format]], thinking))
        assert call.name == "delete_all"


@batched("format", ["litellm_json", "llama3_json", "glm4", "react", "functionary_v32"])
def test_behind_prose_with_a_brace_nothing_runs_and_the_operator_sees_it(format):
    events = events_of_pieces(format, ['The body {"is": this.\n\n' + CALLS[format]], "none")
    assert runnable_calls(events) == []
    assert [(each.name, each.reason) for each in events if isinstance(each, CallNotRun)] == [("delete_all", "nested")]


@batched("format", ["litellm_json", "llama3_json", "glm4"])
@batched("said", ['The body is {"a": {"b": 1}}.', "Use {city} or {}.", '```json\n{\n  "a": 1\n}\n```', '{"a": 1}'])
def test_behind_prose_with_whole_objects_and_placeholders_a_call_runs(format, said):
    text = f"{said}\n\n{CALLS[format]}"
    for pieces in ([text], text):
        assert [each.name for each in runnable_calls(events_of_pieces(format, pieces, "none"))] == ["delete_all"]


@batched("format", ["pythonic", "olmo3"])
def test_behind_prose_that_quotes_a_python_call_no_marked_one_runs(format):
    inner = "<function_calls>\ndelete_all(path='/srv')\n</function_calls>"
    text = f"I could write [write_file(path='a', content='one\n\n{inner}\n\ntwo')] but no."
    for pieces in ([text], text):
        assert runnable_calls(events_of_pieces(format, pieces, "none")) == []


DELETION = '<function=delete_all>{"path": "/srv"}</function>'
BROKEN = f'~~~\nso:\n<function=write_file>{{"path": "/a", "content": "“{DELETION}”\n~~~\n\nNow:\n\n'


@batched("thinking", ["none", "unknown"])
def test_behind_a_quoted_call_that_broke_nothing_runs_however_the_text_is_cut(thinking):
    text = BROKEN + DELETION
    for pieces in ([text], text, text.splitlines(keepends=True)):
        assert runnable_calls(events_of_pieces("functionary_v31", pieces, thinking)) == []


def test_what_follows_the_first_call_is_held_though_that_is_quoted():
    reader = reader_for("hermes", TOOLS)
    quoted = f"Use `{CALLS['hermes']}` here.\n\nMore.\n\n"
    assert reader.feed(quoted) == [TextDelta("Use ")]
    assert reader.feed("And more.\n") == []
    assert "".join(event.text for event in reader.finish() if isinstance(event, TextDelta)).endswith("And more.\n")
