"""What an operator fixed in a tool's request stays as it is, however an argument is spelled."""

import functools
import json
from typing import Any

import pytest

from callgate.tools.fixed_names import FixedNames
from callgate.tools.kinds.http.client import Request, Web
from callgate.tools.kinds.http.endpoint import BadArgument, BadTemplate, HttpEndpoint
from callgate.tools.kinds.python.function import python_tool
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.parameters import closed, named_in
from callgate.tools.schema import compile_schema

WEB = Web()
"""Never connects in these tests: the request is looked at before it is sent."""
OPEN = {"type": "object", "properties": {"q": {"type": "string"}}, "additionalProperties": True}
SPELLINGS = [
    *("tenant", "Tenant", "TENANT", "%74enant", "%2574enant", "tenant%5B%5D", "tenant[]", "tenant[0]", "tenant[x]"),
    *(
        "tenant.x",
        " tenant",
        "tenant ",
        "+tenant",
        "tenant\0x",
        "ten\x01ant",
        "ｔｅｎａｎｔ",
        "tenant[",
        "TENANT%5bx%5d",
    ),
]


def endpoint(method: str = "GET", **options: Any) -> HttpEndpoint:
    given: dict[str, Any] = {"url": "https://api.example.com/rows?role=reader", "query": {"tenant": "acme", "q": "{q}"}}
    return HttpEndpoint(WEB, method=method, **{"parameters": OPEN, **given, **options})


def request(tool: HttpEndpoint, **arguments: Any) -> Request:
    return tool._request(arguments, "key_1")


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PATCH"])
@pytest.mark.parametrize("name", [*SPELLINGS, "role", "ROLE", "role[]", "X-Token", "x_token", "x-token", "x[token"])
def test_a_name_that_is_fixed_is_never_taken_from_arguments(method: str, name: str) -> None:
    tool = endpoint(method, headers={"X-Token": "secret"})
    with pytest.raises(BadArgument, match="cannot be chosen"):
        request(tool, **{"q": "x", name: "victim"})


@pytest.mark.parametrize("name", ["tenants", "q2", "enant", "rol", "roles", "my_tenant", "x"])
def test_other_names_are_taken_where_the_schema_is_open(name: str) -> None:
    made = request(endpoint(), **{"q": "x", name: "1"})
    assert str(made.url) == f"https://api.example.com/rows?role=reader&tenant=acme&q=x&{name}=1"


def test_a_part_of_a_name_is_fixed_by_itself() -> None:
    fixed = FixedNames(["filter[status]"])
    assert fixed.meant_by("filter[owner]") is None
    assert [fixed.meant_by(name) for name in ("filter", "filter.status", "filter[status][x]")] == ["filter[status]"] * 3
    assert FixedNames(["user_id"]).meant_by("user.id") == "user_id", "as PHP reads it"


def test_a_parameter_that_is_fixed_is_a_mistake_of_the_operator() -> None:
    properties = {"q": {"type": "string"}, "Role": {"type": "string"}}
    with pytest.raises(BadTemplate, match="`Role` of `parameters` can never be set: role is fixed"):
        endpoint(parameters={"type": "object", "properties": properties})


def test_a_body_that_is_one_argument_does_not_set_a_fixed_name() -> None:
    properties = {"payload": {"type": "object"}}
    options = {"body": "{payload}", "query": {}, "parameters": {"type": "object", "properties": properties}}
    tool = endpoint("POST", **options)
    assert json.loads(request(tool, payload={"title": "x"}).content or b"") == {"title": "x"}
    with pytest.raises(BadArgument, match="`Role` cannot be chosen"):
        request(tool, payload={"title": "x", "Role": "admin"})


def test_what_a_body_fixes_is_not_sent_beside_it() -> None:
    properties = {"title": {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "additionalProperties": True}
    tool = endpoint("DELETE", query={}, body={"title": "{title}", "source": "callgate"}, parameters=parameters)
    with pytest.raises(BadArgument, match="`source` cannot be chosen"):
        request(tool, title="x", source="me")


@pytest.mark.parametrize("name", ["authorization", "AUTHORIZATION", "Authorization"])
def test_a_configured_header_is_sent_once_whatever_its_case(name: str) -> None:
    tool = endpoint("POST", headers={name: "Bearer t", "content-type": "application/x.rows", "idempotency-key": "mine"})
    sent = request(tool, q="x").headers
    assert {header.lower(): value for header, value in sent.items()} == {
        "authorization": "Bearer t",
        "content-type": "application/x.rows",
        "idempotency-key": "key_1",
    }
    assert len(sent) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"url": "https://api.example.com/{citty}"},
            "`{citty}` is no property of `parameters`; did you mean `{city}`?",
        ),
        ({"url": "https://api.example.com/?c={citty}"}, "`{citty}` is no property"),
        ({"query": {"c": "in {citty}"}}, "`{citty}` is no property"),
        ({"body": {"deep": [{"c": "{citty}"}]}, "method": "POST"}, "`{citty}` is no property"),
        ({"headers": {"X-City": "{citty}"}}, "the value of X-City holds `{…}`: arguments are not filled into headers"),
        ({"headers": {"X-City": "{city}"}}, "arguments are not filled into headers"),
    ],
)
def test_a_placeholder_that_is_no_parameter_is_refused(options: dict[str, Any], message: str) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    with pytest.raises(BadTemplate) as refused:
        endpoint(**{"url": "https://api.example.com/", "query": {}, "parameters": parameters, **options})
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)


# Closed parameters ----------------------------------------------------------------------------------------------------

COMPOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {}},
    "allOf": [{"properties": {"b": {}}}, {"$ref": "#/$defs/more"}],
    "$defs": {"more": {"properties": {"c": {}}, "anyOf": [{"properties": {"d": {}}}, {"$ref": "#/$defs/more"}]}},
}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"properties": {"a": {}}},
        {"type": "object", "properties": {"a": {}}, "required": ["a"]},
        {"type": "object", "patternProperties": {"^a$": {}}},
        COMPOSED,
    ],
)
def test_parameters_are_closed_unless_they_say_otherwise(schema: dict[str, Any]) -> None:
    check = compile_schema(closed(schema))
    assert check({"a": 1, "tenant": "victim"}) is not None


def test_closed_parameters_take_what_their_parts_name() -> None:
    check = compile_schema(closed(COMPOSED))
    assert check({"a": 1, "b": 2, "c": 3, "d": 4}) is None
    assert check({"a": 1, "e": 2}) is not None
    assert named_in(COMPOSED) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("said", [{"additionalProperties": True}, {"additionalProperties": {"type": "string"}}])
def test_parameters_that_say_so_are_open(said: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {}}, **said}
    assert closed(schema) is schema
    assert compile_schema(schema)({"a": 1, "b": "x"}) is None


# Other kinds ----------------------------------------------------------------------------------------------------------


def rows(q: str, *, tenant: str = "none") -> str:
    """Find rows."""
    return f"{tenant}: {q}"


def test_what_a_partial_function_fixes_is_no_parameter() -> None:
    threads = ThreadPool(1)
    tool = python_tool(functools.partial(rows, tenant="acme"), threads, name="rows")
    assert list(tool.parameters["properties"]) == ["q"]
    assert tool.parameters["additionalProperties"] is False
