import json
from typing import Any

import msgspec
import pytest

from callgate.calls.outcome import Failed, Outcome, Returned
from callgate.config.schema.select import MAX_CHARACTERS, MAX_NESTING
from callgate.config.schema.whole import Config
from callgate.tools.executor import CallContext, Tool
from callgate.tools.shaped_results import IN_A_THREAD, ResultRules, ShapedResults, shaped
from tests.fakes import AnsweringTool, ready
from tests.tools.executor_kinds import an_occasion

pytestmark = pytest.mark.anyio

DEMO = {"model_name": "m", "litellm_params": {"model": "demo/demo"}}

ISSUES = [
    {"number": at, "title": f"Issue {at}", "body": "long " * 400, "labels": [{"name": "bug"}]} for at in range(120)
]
SELECT = "[].{number: number, title: title, labels: labels[].name}"
SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


async def result(answer: Outcome | str, **how: Any) -> Outcome:
    return await ShapedResults(AnsweringTool(answer), **how).execute(ready("t"), an_occasion())


async def returned(answer: Outcome | str, **how: Any) -> Returned:
    outcome = await result(answer, **how)
    assert isinstance(outcome, Returned)
    return outcome


def findings(outcome: Returned) -> tuple[str, ...]:
    return outcome.facts.findings if outcome.facts else ()


def with_content(text: str, structured: Any, **more: Any) -> Returned:
    return Returned(text, structured=msgspec.Raw(msgspec.json.encode(structured)), **more)


async def test_a_quarter_of_a_megabyte_becomes_what_the_model_needs():
    text = json.dumps(ISSUES)
    assert len(text) > 240_000
    outcome = await returned(text, select=SELECT)
    assert len(outcome.text) < 12_000
    assert json.loads(outcome.text)[7] == {"number": 7, "title": "Issue 7", "labels": ["bug"]}
    assert outcome.facts is not None
    assert outcome.facts.selected_from == len(text)


async def test_a_large_result_is_read_in_a_thread_with_the_same_outcome():
    text = json.dumps({"rows": ["x" * 100] * 4000, "count": 4000})
    assert len(text) > IN_A_THREAD
    assert (await returned(text, select="count")).text == "4000"


@pytest.mark.parametrize(
    ("select", "text"), [("name", "Ann"), ("[name]", '["Ann"]'), ("age", "5"), ("tags", "[]"), ("ok", "false")]
)
async def test_texts_are_given_as_they_are_and_all_else_as_json(select: str, text: str):
    answer = json.dumps({"name": "Ann", "age": 5, "tags": [], "ok": False})
    assert (await returned(answer, select=select)).text == text


@pytest.mark.parametrize("answer", ["no JSON", '{"a": 1', '{"a": null}', "[1, 2]", "{}"])
async def test_an_expression_that_gives_nothing_leaves_the_result_and_says_so(answer: str):
    outcome = await returned(answer, select="a")
    assert outcome.text == answer
    assert findings(outcome) == ("select_failed",)


async def test_an_expression_that_fails_leaves_the_result():
    outcome = await returned('{"a": "text"}', select="abs(a)")
    assert (outcome.text, findings(outcome)) == ('{"a": "text"}', ("select_failed",))


async def test_a_result_that_was_cut_is_not_read():
    outcome = await returned(Returned('{"a": 1}', cut_bytes=5), select="a")
    assert (outcome.text, findings(outcome)) == ('{"a": 1}', ("select_skipped",))


async def test_a_result_that_is_too_large_is_not_read():
    answer = json.dumps({"a": "x" * (4 * 1024 * 1024)})
    outcome = await returned(answer, select="a")
    assert (outcome.text, findings(outcome)) == (answer, ("select_skipped",))


async def test_failures_stay_as_they_are():
    assert await result(Failed('{"a": 1}'), select="a") == Failed('{"a": 1}')


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({}, "words"),
        ({"form": "text", "output_schema": SCHEMA}, "words"),
        ({"form": "structured"}, '{"total":3,"rows":[1]}'),
        ({"select": "total"}, "3"),
        ({"select": "total", "output_schema": SCHEMA}, "3"),
        ({"output_schema": SCHEMA}, "words"),
    ],
    ids=["as it is", "text", "structured", "text is no JSON", "auto", "auto without select"],
)
async def test_the_form_says_which_of_two_results_counts(how: Any, text: str):
    outcome = await returned(with_content("words", {"total": 3, "rows": [1]}), **how)
    assert outcome.text == text
    assert outcome.structured is None


async def test_the_text_is_selected_from_where_it_counts_and_is_json():
    answer = with_content('{"total": "of the text"}', {"total": 3})
    assert (await returned(answer, select="total")).text == "of the text"
    assert (await returned(answer, select="total", output_schema=SCHEMA)).text == "3"
    assert (await returned(answer, select="total", output_schema=SCHEMA, form="text")).text == "of the text"


async def test_a_violation_of_the_servers_schema_is_found_and_the_result_is_given():
    outcome = await returned(with_content("words", {"total": "many"}), output_schema=SCHEMA)
    assert (outcome.text, findings(outcome)) == ("words", ("output_schema_violation",))
    assert findings(await returned(with_content("words", {"total": 3}), output_schema=SCHEMA)) == ()
    assert findings(await returned("words", output_schema=SCHEMA)) == ()


@pytest.mark.parametrize(
    "schema", [{"type": "no type"}, {"$ref": "https://example.com/x"}, {"description": "x" * 70_000}]
)
async def test_a_schema_that_cannot_be_compiled_is_violated_by_nothing(schema: Any):
    outcome = await returned(with_content("words", {"total": 1}), output_schema=schema)
    assert (outcome.text, findings(outcome)) == ("words", ())


async def test_only_who_shapes_results_asks_for_the_structured_one():
    asked: list[bool] = []

    class Notes(AnsweringTool):
        async def execute(self, call: Any, context: CallContext) -> Outcome:
            asked.append(context.wants_structured)
            return await super().execute(call, context)

    tool = Tool("t", "", {}, Notes("x"))
    assert shaped(tool, "t", ResultRules()) is tool
    await shaped(tool, "t", ResultRules(form="structured")).executor.execute(ready("t"), an_occasion())
    assert asked == [True]


async def test_a_name_goes_before_globs_and_a_longer_glob_before_a_shorter_one():
    rules = ResultRules(selects={"*": "a", "list_*": "b", "list_issues": "c"})
    assert [rules.select_of(name) for name in ("list_issues", "list_rows", "get")] == ["c", "b", "a"]
    assert ResultRules(selects={"list_*": "b"}).select_of("get") == ""


def config(**fields: Any) -> Config:
    tool = {"kind": "command", "name": "t", "description": "d", "argv": ["ls"], **fields}
    return Config.model_validate({"model_list": [DEMO], "tools": [tool]})


@pytest.mark.parametrize(
    "expression",
    ["a..b", "[", "a[?b==]", "{a:}", "", "x" * (MAX_CHARACTERS + 1), "[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1)],
)
async def test_a_malformed_expression_is_refused_with_the_config(expression: str):
    for select in (expression, {"list_*": expression}):
        with pytest.raises(ValueError, match="select"):
            config(select=select)


async def test_two_hundred_damaged_expressions_are_refused_or_mean_something():
    for at in range(200):
        damaged = SELECT[: at % len(SELECT)] + "]}([{|@"[at % 7] + SELECT[at % len(SELECT) :]
        try:
            config(select=damaged)
        except ValueError:
            continue
        assert isinstance(await result(json.dumps(ISSUES[:1]), select=damaged), Returned)


def _branching(levels: int) -> dict[str, Any]:
    """Return a schema that refers twice to one that refers twice to another, and so on."""
    named: dict[str, Any] = {
        f"a{level}": {"anyOf": [{"$ref": f"#/$defs/a{level + 1}"}, {"$ref": f"#/$defs/a{level + 1}"}]}
        for level in range(levels)
    }
    named[f"a{levels}"] = {"type": "string"}
    return {"type": "object", "$defs": named, "properties": {"x": {"$ref": "#/$defs/a0"}}}


@pytest.mark.parametrize("levels", [14, 200])
async def test_a_servers_schema_of_endless_branches_does_not_hold_the_result(levels: int):
    outcome = await returned(with_content("one", {"x": 1}), output_schema=_branching(levels))
    assert outcome.text == "one"
    assert findings(outcome) == (("output_schema_violation",) if levels == 14 else ())


async def test_structured_content_that_is_large_for_its_large_schema_is_not_checked():
    schema = {"type": "object", "additionalProperties": {"allOf": [{"enum": [f"y{at}"]} for at in range(1000)]}}
    content = {f"k{at}": "x" * 500 for at in range(200)}
    assert findings(await returned(with_content("one", content), output_schema=schema)) == ()
    assert findings(await returned(with_content("one", {"k": "x"}), output_schema=schema)) == (
        "output_schema_violation",
    )


async def test_an_expression_whose_value_is_no_json_leaves_the_result():
    outcome = await returned('{"a": 1}', select="[&a]")
    assert (outcome.text, findings(outcome)) == ('{"a": 1}', ("select_failed",))


@pytest.mark.parametrize("patterns", [["(\\w{500}){20}"], [f"y{at}" for at in range(51)]], ids=["large", "many"])
async def test_a_servers_schema_whose_patterns_would_fill_the_memory_is_not_checked(patterns: list[str]):
    schema = {"type": "object", "properties": {"x": {"allOf": [{"pattern": pattern} for pattern in patterns]}}}
    assert findings(await returned(with_content("one", {"x": "a"}), output_schema=schema)) == ()
