"""The forms that servers ask people to fill in: what is shown of them, and what is taken for an answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.tools.approvals.form_filling import FormFilling, filled
from callgate.tools.questions import (
    MAX_CHOICES,
    MAX_FIELDS,
    BadAnswer,
    BadQuestion,
    check_content,
    form_of,
    host_of,
    masked_content,
    secret_fields,
)


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def one(**field: Any) -> dict[str, Any]:
    return fields(a=field)


KEYWORDS = {
    "string": ("default", "enum", "enumNames", "oneOf", "anyOf", "minLength", "maxLength", "format", "title"),
    "number": ("default", "minimum", "maximum"),
    "array": ("default", "items", "minItems"),
}


def every_keyword(value: Any) -> list[dict[str, Any]]:
    """Return forms of which one keyword of their only field has a value."""
    forms = [one(type=kind, **{keyword: value}) for kind, keywords in KEYWORDS.items() for keyword in keywords]
    return [*forms, one(type=value), one(type="string", enum=["a"], enumNames=[value]), {**one(), "required": [value]}]


TEXT = {"type": "string"}
MALFORMED: dict[str, Any] = {
    "none": None,
    "a text": "form",
    "a list": [TEXT],
    "a list of fields": {"type": "object", "properties": [TEXT]},
    "no fields": {"type": "object"},
    "an array": {"type": "array", "properties": {}},
    "several types": {"type": ["object"], "properties": {}},
    "too many fields": fields(**{f"f{at}": TEXT for at in range(MAX_FIELDS + 1)}),
    "requires what is not there": {**fields(a=TEXT), "required": ["b"]},
    "requires a number": {**fields(a=TEXT), "required": [1]},
    "requires a list": {**fields(a=TEXT), "required": [["a"]]},
    "requires an object": {**fields(a=TEXT), "required": {"a": True}},
    "a name that is empty": fields(**{"": TEXT}),
    "a name with a break": fields(**{"a\nb": TEXT}),
    "a name that turns round": fields(**{"a\u202eb": TEXT}),
    "a name of blanks": fields(ㅤ=TEXT),
    "a long name": fields(**{"a" * 129: TEXT}),
    "a field that is a text": fields(a="string"),
    "a field that is true": fields(a=True),
    "a field without a type": fields(a={}),
    "a field of two types": one(type=["string", "null"]),
    "a nested object": one(type="object", properties={"b": TEXT}),
    "null": one(type="null"),
    "an unknown type": one(type="file"),
    "a reference": {"$ref": "#/x"},
    "a field by reference": fields(a={"$ref": "https://evil.example/schema"}),
    "a list of anything": one(type="array"),
    "a list of texts": one(type="array", items=TEXT),
    "a list of lists": one(type="array", items={"type": "array", "enum": [["a"]]}),
    "a list of true": one(type="array", items=True),
    "an empty choice": one(type="string", enum=[]),
    "a choice of numbers": one(type="string", enum=[1, 2]),
    "a choice of null": one(type="string", enum=[None]),
    "a choice that is a text": one(type="string", enum="abc"),
    "too many choices": one(type="string", enum=[str(at) for at in range(MAX_CHOICES + 1)]),
    "a long choice": one(type="string", enum=["x" * 5_000]),
    "titles without values": one(type="string", oneOf=[{"title": "A"}]),
    "titles of nothing": one(type="string", oneOf=[]),
    "titles that are texts": one(type="string", oneOf=["a", "b"]),
    "a title twice": one(type="string", oneOf=[{"const": "a"}, {"const": "a"}]),
    "a length that is a text": one(type="string", minLength="3"),
    "a length below nothing": one(type="string", minLength=-1),
    "a length that is true": one(type="string", maxLength=True),
    "a length of half": one(type="string", maxLength=1.5),
    "a bound that is a text": one(type="integer", minimum="3"),
    "a bound that is a list": one(type="number", maximum=[3]),
    "a default of another type": one(type="integer", default="three"),
    "a default that is no choice": one(type="string", enum=["a"], default="b"),
    "a default out of bounds": one(type="integer", maximum=3, default=4),
    "a default that is an object": one(type="string", default={"a": 1}),
    "a long default": one(type="string", default="x" * 5_000),
    "a default of lists": one(type="array", items={"enum": ["a"]}, default=[["a"]]),
}


@pytest.mark.parametrize("schema", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_form_is_refused(schema: Any) -> None:
    with pytest.raises(BadQuestion):
        form_of(schema)


def test_a_form_has_only_keywords_that_are_known_and_is_closed() -> None:
    asked = {
        "$schema": "https://evil.example/",
        "type": "object",
        "properties": {
            "a": {"type": "string", "title": "A\u200b", "pattern": "(a+)+$", "format": "email", "x-run": "it"},
            "b": {"type": "string", "enum": ["x", "y"], "enumNames": ["X", "Y"]},
            "c": {"type": "string", "oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]},
            "d": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "X"}]}, "maxItems": 1},
            "e": {"type": "number", "minimum": 0.5, "exclusiveMinimum": 3},
            "f": {"type": "boolean", "default": True},
        },
        "required": ["a", "a"],
        "additionalProperties": True,
        "allOf": [{"required": ["z"]}],
    }
    assert form_of(asked) == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "title": "A", "format": "email"},
            "b": {"type": "string", "oneOf": [{"const": "x", "title": "X"}, {"const": "y", "title": "Y"}]},
            "c": {"type": "string", "oneOf": [{"const": "x", "title": "X"}, {"const": "y", "title": "y"}]},
            "d": {
                "type": "array",
                "items": {"type": "string", "oneOf": [{"const": "x", "title": "X"}]},
                "maxItems": 1,
                "uniqueItems": True,
            },
            "e": {"type": "number", "minimum": 0.5},
            "f": {"type": "boolean", "default": True},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        ("email", "a@b.example", "a b"),
        ("uri", "https://a.example/x", "a"),
        ("date", "2026-11-20", "20.11.2026"),
        ("date-time", "2026-11-20T04:00:00Z", "2026-11-20"),
    ],
)
def test_a_text_has_the_format_that_was_asked_for(format: str, good: str, bad: str) -> None:
    form = form_of(one(type="string", format=format))
    assert check_content(form, {"a": good}) == {"a": good}
    with pytest.raises(BadAnswer):
        check_content(form, {"a": bad})


@pytest.mark.parametrize("value", [["email"], {"email": 1}, 7, None, "colour"])
def test_a_format_that_is_not_known_is_left_out(value: Any) -> None:
    assert form_of(one(type="string", format=value))["properties"]["a"] == {"type": "string"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    )
)
def test_any_schema_is_a_form_or_refused_and_any_answer_fits_or_is_refused(value: Any) -> None:
    for schema in (value, fields(a=value), *every_keyword(value)):
        try:
            form_of(schema)
        except BadQuestion:
            continue
    form = form_of({**fields(a=TEXT, n={"type": "number"}), "required": ["a"]})
    try:
        content = check_content(form, value)
    except BadAnswer:
        return
    assert isinstance(content["a"], str)


def test_fields_that_look_like_secrets_are_named_and_masked() -> None:
    form = form_of(
        fields(api_key=TEXT, city=TEXT, x={**TEXT, "title": "Your password"}, monkey=TEXT, tokens={"type": "integer"})
    )
    assert secret_fields(form) == ["api_key", "x"]
    assert masked_content(form, {"api_key": "s", "city": "Oslo"}) == {"api_key": "[masked]", "city": "Oslo"}


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://github.com/login", "github.com"),
        ("https://g\u0456thub.com/", "xn--gthub-n2e.com"),
        ("https://a.example:8443/@github.com", "a.example"),
        ("http://[::1]/", "::1"),
    ],
)
def test_a_host_is_shown_as_browsers_ask_for_it(url: str, host: str) -> None:
    assert host_of(url) == host


ISSUE = {
    **fields(
        title={"type": "string", "minLength": 2},
        priority={"type": "string", "enum": ["low", "high"], "default": "low"},
        count={"type": "integer"},
        loud={"type": "boolean"},
        labels={"type": "array", "items": {"type": "string", "enum": ["bug", "docs"]}},
    ),
    "required": ["title"],
}


def test_a_form_is_filled_in_line_by_line() -> None:
    filling = FormFilling(form_of(ISSUE))
    lines = iter(["", "x", "It leaks", "middle", "2", "many", "3", "perhaps", "y", "docs, bug"])
    prompts, problems = [], []
    while (prompt := filling.prompt()) is not None:
        prompts.append(prompt)
        problems.append(filling.feed(next(lines)))
    assert prompts[0] == "title *: "
    assert "priority [1 low, 2 high] <low>: " in prompts
    assert [bool(problem) for problem in problems] == [True, True, False, True, False, True, False, True, False, False]
    assert filling.content == {
        "title": "It leaks",
        "priority": "high",
        "count": 3,
        "loud": True,
        "labels": ["docs", "bug"],
    }


def test_a_form_is_filled_in_by_names_with_its_defaults() -> None:
    assert filled(form_of(ISSUE), {"title": "It leaks"}) == {"title": "It leaks", "priority": "low"}
    for pairs in ({}, {"title": "It leaks", "color": "red"}, {"title": "It leaks", "count": "many"}):
        with pytest.raises(BadAnswer):
            filled(form_of(ISSUE), pairs)
