import asyncio
import contextlib
import copy
import functools
import json
import operator
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from fastapi import Cookie, FastAPI, Form, Header, Query
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from callgate.calls.outcome import Failed, FailureKind, Returned
from callgate.tools.executor import Safety, Tool
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import Request
from callgate.tools.kinds.http.endpoint import BadArgument, HttpEndpoint
from callgate.tools.kinds.openapi.document import BadDocument, LeftOut, OpenApiDocument
from callgate.tools.kinds.openapi.reading import OperationFilter, operations_of
from callgate.tools.kinds.openapi.schema import Dictionary, Schemas
from callgate.tools.kinds.openapi.source import Api, OpenApiSource
from callgate.tools.registry import Registry, whole_schema
from callgate.tools.schema import SchemaError, compile_schema
from callgate.tools.source_supervisor import SourceState
from tests.chaos.scale import examples
from tests.harness.server import serve
from tests.parsers.reading_here import ReadingHere
from tests.tools.executor_kinds import an_occasion, everything, ready

SHOP = Path(__file__).parent / "openapi" / "shop.yaml"
LOOPBACK = AddressRules(allow_private=True)


def source(document: Any = SHOP, tmp_path: Path | None = None, **said: Any) -> OpenApiSource:
    if not isinstance(document, Path):
        assert tmp_path is not None
        file = tmp_path / "document.yaml"
        file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        document = file
    return OpenApiSource("shop", Api(**said), str(document))


def built(found: OpenApiSource, document: OpenApiDocument) -> tuple[Tool, ...]:
    reading = operations_of(document, found.terms())
    found._take((*reading.operations, *reading.left_out))
    return found.tools()


def tool(name: str, found: OpenApiSource | None = None, **said: Any) -> Tool:
    [one] = [each for each in (found or source(**said)).tools() if each.name == name]
    return one


def request(of: Tool, **arguments: Any) -> Request:
    assert isinstance(of.executor, HttpEndpoint)
    return of.executor._request(arguments, "key_1")


def query(**arguments: Any) -> str:
    return request(tool("listOrders"), **arguments).url.query.decode()


def document(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    servers = [{"url": "https://api.example.com/v1"}]
    return {"openapi": "3.1.0", "info": {}, "servers": servers, "paths": paths, **more}


SOURCE = source(auth={"api_key": "k"})


# Operations as tools ------------------------------------------------------------------------------


def test_an_operation_is_a_tool_with_its_description():
    one = tool("listOrders")
    assert one.description == "Lists orders.\n\nNewest first."
    assert one.source == "GET https://eu.shop.example/api/v2/orders"
    assert one.kind == "openapi"


def test_one_without_a_name_is_called_by_its_method_and_path():
    assert tool("delete_orders_id").description == "Deprecated."


def test_methods_say_how_safe_they_are():
    safety = {each.name: each.policy.safety for each in source().tools()}
    assert safety["listOrders"] is Safety.READ_ONLY
    assert safety["createOrder"] is Safety.WRITE
    assert safety["delete_orders_id"] is Safety.DESTRUCTIVE
    assert {each.policy.safety for each in source(safety=Safety.READ_ONLY).tools()} == {Safety.READ_ONLY}


def test_what_cannot_be_a_tool_is_left_out_with_the_reason():
    reasons = dict(source().left_out())
    assert reasons.keys() == {"upload", "matrix", "remote", "nowhere", "ring", "forgotten"}
    assert "multipart/form-data" in reasons["upload"]
    assert "'matrix'" in reasons["matrix"]
    assert "leads out of the document" in reasons["remote"]
    assert "leads nowhere" in reasons["nowhere"]
    assert "ring" in reasons["ring"]
    assert "`{what}`" in reasons["forgotten"]


def test_every_schema_compiles_and_every_tool_is_taken_in():
    found = source().tools()
    for each in found:
        compile_schema(each.parameters)
    assert {each.name for each in found} == {
        "listOrders", "createOrder", "replaceOrder", "delete_orders_id", "note", "search", "echo", "growTree",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        (("orders",), (), {"listOrders", "createOrder"}),
        (("GET *",), (), {"listOrders", "note"}),
        (("*Order*",), ("POST *",), {"listOrders", "replaceOrder"}),
        (("search", "DELETE /orders/{id}"), (), {"search", "delete_orders_id"}),
    ],
)
def test_operations_are_chosen_by_name_path_or_tag(include, exclude, names):
    assert {each.name for each in source(selection=OperationFilter(include, exclude)).tools()} == names


@pytest.mark.parametrize(
    ("prefix", "rename", "names"),
    [
        ("shop", {}, {"shop_echo", "shop_things"}),
        ("", {"echo": "say"}, {"say", "things"}),
        ("shop", {"echo": "say", "*": "{method}_{name}"}, {"shop_say", "shop_get_things"}),
        ("", {"*": "{tag}/{name}"}, {"echo", "stock_things"}),
    ],
)
def test_tools_are_renamed_and_prefixed_and_keep_their_origin(tmp_path, prefix, rename, names):
    paths = {
        "/e": {"post": {"operationId": "echo"}},
        "/t": {"get": {"operationId": "things", "tags": ["stock"]}},
    }
    found = source(document(paths), tmp_path, prefix=prefix, rename=rename).tools()
    assert {each.claimed for each in found} == names
    assert {each.name for each in found} == {"echo", "things"}


def test_a_new_name_for_an_operation_that_is_not_there_is_a_mistake():
    with pytest.raises(BadDocument, match="`rename` names no operation of it: 'ehco'; is it 'echo'"):
        source(rename={"ehco": "say"})


def test_names_that_name_nothing_are_mistakes():
    with pytest.raises(BadDocument, match="'lisOrders'"):
        source(selection=OperationFilter(("lisOrders",)))
    with pytest.raises(BadDocument, match="'DELET "):
        source(selection=OperationFilter(("*",), ("DELET *",)))
    with pytest.raises(BadDocument, match="`auth` names 'apikey'"):
        source(auth={"apikey": "k"})


# Arguments and schemas ----------------------------------------------------------------------------


def properties(name: str) -> dict[str, Any]:
    return dict(tool(name).parameters["properties"])


def test_keywords_of_3_0_are_translated_to_json_schema():
    found = properties("listOrders")
    assert found["limit"] == {"type": ["integer", "null"], "exclusiveMinimum": 0}
    assert found["country"]["enum"] == ["no", "se", "dk"]
    order = properties("createOrder")
    assert order["note"] == {"type": ["string", "null"], "enum": ["gift", "fragile", None]}
    assert order["parent"] == {"anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}]}


def test_what_only_a_server_writes_is_not_asked_for():
    made = tool("createOrder").parameters
    assert set(made["properties"]) == {"X-Trace", "id", "item", "note", "parent"}
    assert made["required"] == ["id", "item"]
    assert set(made["$defs"]["Item"]["properties"]) == {"sku", "weird"}


def test_harmless_mistakes_of_documents_are_dropped():
    item = tool("createOrder").parameters["$defs"]["Item"]
    assert item["properties"] == {"sku": {"type": "string"}, "weird": {}}


def test_headers_that_are_ours_are_not_a_models_to_write():
    assert "Authorization" not in properties("listOrders")


def test_illegal_names_are_cleaned_and_written_as_they_were():
    assert "since_date_" in properties("listOrders")
    assert query(since_date_="2024-01-31") == "since%5Bdate%5D=2024-01-31"


def test_parameters_of_one_name_are_distinguished_by_their_places():
    one = tool("replaceOrder")
    assert set(one.parameters["properties"]) == {"id", "query_id", "body_id", "item", "note", "parent"}
    assert one.parameters["required"] == ["id", "body_id", "item"]
    made = request(one, id="a", query_id=2, body_id="c", item={"sku": "s"})
    assert str(made.url) == "https://eu.shop.example/api/v2/orders/a?id=2"
    assert made.content == b'{"id":"c","item":{"sku":"s"}}'


def test_a_schema_that_refers_to_itself_is_kept_as_one():
    schema = tool("growTree").parameters
    assert schema["properties"]["body"] == {"$ref": "#/$defs/Tree"}
    check = compile_schema(schema)
    assert check({"body": {"children": [{"children": []}]}}) is None
    assert check({"body": {"children": [5]}}) is not None


def test_3_1_keeps_what_stands_beside_a_reference(tmp_path):
    schema = {"$ref": "#/components/schemas/Name", "maxLength": 5}
    paths = {"/x": {"get": {"parameters": [{"name": "n", "in": "query", "schema": schema}]}}}
    found = source(document(paths, components={"schemas": {"Name": {"type": ["string", "null"]}}}), tmp_path)
    [one] = found.tools()
    assert one.parameters["properties"]["n"] == {"$ref": "#/$defs/Name", "maxLength": 5}
    assert one.parameters["$defs"] == {"Name": {"type": ["string", "null"]}}


def test_a_long_chain_of_references_is_followed_to_its_end(tmp_path):
    length = 300
    schemas: dict[str, Any] = {
        f"S{n}": {"properties": {"next": {"$ref": f"#/components/schemas/S{n + 1}"}}} for n in range(length)
    }
    schemas[f"S{length}"] = {"type": "integer"}
    parameter = {"name": "n", "in": "query", "schema": {"$ref": "#/components/schemas/S0"}}
    found = source(document({"/x": {"get": {"parameters": [parameter]}}}, components={"schemas": schemas}), tmp_path)
    [one] = found.tools()
    assert one.parameters["$defs"][f"S{length}"] == {"type": "integer"}
    compile_schema(one.parameters)


def test_two_schemas_whose_names_end_alike_stay_two(tmp_path):
    schemas = {"a": {"x": {"type": "string"}}, "b": {"x": {"type": "integer"}}}
    parameters = [{"name": at, "in": "query", "schema": {"$ref": f"#/x-schemas/{at}/x"}} for at in schemas]
    found = source(document({"/x": {"get": {"parameters": parameters}}}, **{"x-schemas": schemas}), tmp_path)
    [one] = found.tools()
    assert one.parameters["$defs"] == {"x": {"type": "string"}, "x_2": {"type": "integer"}}


@pytest.mark.parametrize("keyword", ["$id", "$dynamicRef"])
def test_schemas_whose_references_mean_something_else_are_left_out(keyword):
    with pytest.raises(LeftOut):
        Schemas(Dictionary(OpenApiDocument(document({})))).read({"type": "object", "properties": {"x": {keyword: "y"}}})


def test_a_schema_that_grows_without_end_is_left_out_soon(tmp_path):
    lines = ["a0: &a0 {type: string}"]
    lines += [f"a{n}: &a{n} {{anyOf: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 6)]
    text = (
        "openapi: 3.1.0\nservers: [{url: 'https://a.example'}]\nx-bomb:\n  "
        + "\n  ".join(lines)
        + """
paths:
  /x: {get: {operationId: bomb, parameters: [{name: p, in: query, schema: *a5}]}}
  /y: {get: {operationId: fine}}
"""
    )
    found = source(text, tmp_path)
    assert [each.name for each in found.tools()] == ["fine"]
    assert "too large" in dict(found.left_out())["bomb"]


def test_a_document_that_is_one_bomb_after_the_other_is_refused_as_a_whole(monkeypatch):
    monkeypatch.setattr("callgate.tools.kinds.openapi.schema.MAX_ALL_NODES", 1000)
    schema = {"anyOf": [{"type": "string"}] * 300}
    paths = {f"/{n}": {"get": {"parameters": [{"name": "p", "in": "query", "schema": schema}]}} for n in range(9)}
    with pytest.raises(BadDocument, match="too large"):
        operations_of(OpenApiDocument(document(paths)), source().terms())


# Requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"status": ["a b", "c&d"]}, "status=a%20b&status=c%26d"),
        ({"status": []}, ""),
        ({"ids": [1, 2, 3]}, "ids=1,2,3"),
        ({"words": ["a b", "c,d"]}, "words=a%20b%20c%2Cd"),
        ({"pipes": ["a|b", "c"]}, "pipes=a%7Cb%7Cc"),
        (
            {"filter": {"color": "red", "size": {"min": 2}, "tags": ["x", "y"], "none": None}},
            "filter%5Bcolor%5D=red&filter%5Bsize%5D%5Bmin%5D=2&filter%5Btags%5D%5B%5D=x&filter%5Btags%5D%5B%5D=y",
        ),
        ({"page": {"size": 2, "after": "x&y=z"}}, "size=2&after=x%26y%3Dz"),
        ({"range": {"from": 1, "to": 2}}, "range=from,1,to,2"),
        ({"where": {"city": "Oslo"}}, "where=%7B%22city%22%3A%22Oslo%22%7D"),
        ({"limit": None}, ""),
        ({"country": "no", "limit": 5}, "country=no&limit=5"),
    ],
)
def test_queries_are_written_in_the_style_of_each_parameter(arguments, expected):
    assert query(**arguments) == expected


def test_headers_and_cookies_are_filled():
    made = request(tool("listOrders"), **{"X-Trace": "t1", "session": "a;b=c"})
    assert made.headers["X-Trace"] == "t1"
    assert made.headers["Cookie"] == "session=a%3Bb%3Dc"


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "é", " a", "\ud800"])
def test_a_value_that_would_leave_its_header_is_not_sent(value):
    with pytest.raises(BadArgument, match="X-Trace"):
        request(tool("listOrders"), **{"X-Trace": value})


@pytest.mark.parametrize("place", ["header", "cookie"])
@pytest.mark.parametrize("name", ["X\r\nEvil: 1", "a b", "a;b", "", "é"])
def test_a_name_that_would_leave_its_header_leaves_the_operation_out(tmp_path, place, name):
    parameters = [{"name": name, "in": place, "schema": {"type": "string"}}]
    found = source(document({"/x": {"get": {"parameters": parameters}}, "/y": {"get": {}}}), tmp_path)
    assert [each.name for each in found.tools()] == ["get_y"]
    assert f"cannot be the name of a {place}" in dict(found.left_out())["get_x"]


def test_a_media_type_adds_no_text_of_its_own(tmp_path):
    content = {"application/json; v=1\r\nX-Evil: 1": {"schema": {"type": "object"}}}
    found = source(document({"/x": {"post": {"requestBody": {"content": content}}}}), tmp_path)
    assert request(found.tools()[0], body={}).headers["Content-Type"] == "application/json"


def test_a_form_is_written_as_one():
    made = request(tool("search"), q="a b&c", tags=["x", "y"])
    assert made.content == b"q=a%20b%26c&tags=x&tags=y"
    assert made.headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_an_object_in_a_form_is_json_unless_the_document_says_otherwise():
    made = request(tool("search"), q="x", near={"city": "Oslo"}, meta={"a": {"b": 1}, "c": [{"d": 2}]}, tags=None)
    assert made.content is not None
    assert urllib.parse.unquote(made.content.decode()) == 'q=x&near={"city":"Oslo"}&meta[a][b]=1&meta[c][0][d]=2'


def test_a_text_is_sent_as_it_is():
    made = request(tool("echo"), body='say "hi"')
    assert (made.content, made.headers["Content-Type"]) == (b'say "hi"', "text/plain")


def test_a_body_that_may_be_missing_is_sent_only_when_given():
    assert request(tool("growTree")).content is None
    made = request(tool("growTree"), body={"children": []})
    assert (made.content, made.headers["Content-Type"]) == (b'{"children":[]}', "application/vnd.shop+json")


def test_a_null_in_a_body_is_sent_and_a_missing_property_is_not():
    assert request(tool("createOrder"), id="a", item={"sku": "s"}, note=None).content == (
        b'{"id":"a","item":{"sku":"s"},"note":null}'
    )


def test_a_list_in_a_path_is_one_segment():
    assert str(request(tool("note"), id="a", **{"note-id": [1, 2]}).url).endswith("/orders/a/notes/1%2C2")


@pytest.mark.parametrize("value", ["", ".", "..", "../admin", "a/../../x", "..\\x", "a\nb", "\ud800", None, {"a": 1}])
def test_a_value_that_would_leave_its_place_in_the_path_is_not_sent(value):
    with pytest.raises(BadArgument):
        request(tool("note"), id=value, **{"note-id": 1})


NOTE = tool("note")


@given(st.text(), st.text())
def test_no_value_changes_where_a_request_goes(one, other):
    try:
        made = request(NOTE, id=one, **{"note-id": other})
    except BadArgument:
        return
    assert (made.url.scheme, made.url.host, made.url.port) == ("https", "eu.shop.example", None)
    steps = made.url.raw_path.decode().split("/")
    assert [steps[at] for at in (0, 1, 2, 3, 5)] == ["", "api", "v2", "orders", "notes"]
    assert len(steps) == 7
    assert "?" not in made.url.raw_path.decode()


@given(st.dictionaries(st.text(), st.text() | st.integers()), st.lists(st.text()))
def test_no_value_adds_a_parameter_that_is_not_there(page, words):
    try:
        made = query(filter=page, words=words)
    except BadArgument:
        return
    names = [part.partition("=")[0] for part in made.split("&") if part]
    assert all(name.startswith("filter%5B") or name == "words" for name in names)


# Servers and credentials --------------------------------------------------------------------------


def test_base_url_outranks_the_servers():
    assert str(request(tool("echo", base_url="http://10.0.0.1:8080/x/"), body="").url) == "http://10.0.0.1:8080/x/echo"


def test_the_nearest_servers_count(tmp_path):
    near, nearer = [{"url": "https://near.example"}], [{"url": "https://nearer.example/"}]
    found = source(
        document(
            {"/a": {"servers": near, "get": {}}, "/b": {"servers": near, "get": {"servers": nearer}}, "/c": {"get": {}}}
        ),
        tmp_path,
    )
    assert [each.source for each in found.tools()] == [
        "GET https://near.example/a",
        "GET https://nearer.example/b",
        "GET https://api.example.com/v1/c",
    ]


def test_a_file_without_an_address_needs_one(tmp_path):
    with pytest.raises(BadDocument, match="`base_url`"):
        source(document({"/a": {"get": {}}}, servers=[{"url": "/v1"}]), tmp_path)


@pytest.mark.parametrize(
    ("scheme", "value", "header", "sent"),
    [
        ("api_key", "k1", "X-Key", "k1"),
        ("cookie_key", "k1", "Cookie", "sid=k1"),
        ("basic", "user:pass", "Authorization", "Basic dXNlcjpwYXNz"),
        ("token", "t1", "Authorization", "Bearer t1"),
        ("oauth", "t1", "Authorization", "Bearer t1"),
    ],
)
def test_credentials_go_where_their_scheme_says(tmp_path, scheme, value, header, sent):
    made = request(tool("echo", shop_with(tmp_path, [{scheme: []}], auth={scheme: value})), body="")
    assert made.headers[header] == sent


def shop_with(tmp_path: Path, security: list[dict[str, Any]], **said: Any) -> OpenApiSource:
    text = SHOP.read_text().replace("security:\n  - api_key: []", f"security: {json.dumps(security)}")
    return source(text, tmp_path, **said)


def test_a_key_in_the_query_is_sent_and_shown_nowhere(tmp_path):
    found = shop_with(tmp_path, [{"query_key": []}], auth={"query_key": "s&cret"})
    one = tool("listOrders", found)
    assert request(one, limit=1).url.query == b"key=s%26cret&limit=1"
    assert "cret" not in one.source


def test_the_keys_of_an_object_in_the_query_do_not_set_what_is_fixed(tmp_path):
    free = {"type": "object", "additionalProperties": {"type": "string"}}
    parameters = [
        {"name": "filter", "in": "query", "schema": free},
        {"name": "KEY", "in": "query", "schema": {"type": "string"}},
    ]
    document = {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "servers": [{"url": "https://api.example.com"}],
        "components": {"securitySchemes": {"query_key": {"type": "apiKey", "in": "query", "name": "key"}}},
        "security": [{"query_key": []}],
        "paths": {"/rows": {"get": {"operationId": "rows", "parameters": parameters}}},
    }
    one = tool("rows", source(json.dumps(document), tmp_path, auth={"query_key": "ours"}))
    assert list(one.parameters["properties"]) == ["filter"], "the key is the operator's, however it is written"
    assert request(one, filter={"owner": "me"}).url.query == b"key=ours&owner=me"
    for name in ("key", "Key", "key[]"):
        with pytest.raises(BadArgument, match="cannot be chosen"):
            request(one, filter={name: "theirs"})


def test_all_of_one_way_go_and_nothing_of_the_others(tmp_path):
    found = shop_with(tmp_path, [{"basic": [], "api_key": []}, {"token": []}], auth={"api_key": "k", "token": "t"})
    headers = request(tool("echo", found), body="").headers
    assert headers["Authorization"] == "Bearer t"
    assert "X-Key" not in headers


def test_an_operation_that_wants_no_credentials_gets_none():
    assert "X-Key" not in request(tool("note", auth={"api_key": "k"}), id="a", **{"note-id": 1}).headers


def test_a_scheme_that_we_do_not_know_leaves_its_operations_out(tmp_path):
    found = shop_with(tmp_path, [{"digest": []}], auth={"digest": "x"})
    assert "digest is not supported" in dict(found.left_out())["echo"]


def test_what_the_operator_fills_in_is_not_asked_for():
    found = source(headers={"x-trace": "ours"})
    one = tool("listOrders", found)
    assert "X-Trace" not in one.parameters["properties"]
    assert request(one).headers["x-trace"] == "ours"


# Documents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not readable as JSON"),
        ("a: [", "not readable as YAML"),
        ("- a", "no mapping"),
        ("a: 1", "no OpenAPI document"),
        ("swagger: '2.0'", "Swagger 2.0"),
        ("openapi: 4.0.0", "'4.0.0'"),
        ("openapi: 3.1.0\npaths: []", "`paths` is no mapping"),
        ("openapi: 3.1.0", "no operation"),
        ("openapi: 3.1.0\npaths: {/x: {$ref: 'other.yaml'}}", "leads out of the document"),
        ("openapi: 3.1.0\npaths: &p {/x: *p}", "no end"),
        ("openapi: 3.1.0\nx: !!python/object:os.system {}", "not readable as YAML"),
        ("openapi: 3.1.0\nx: !!int words", "not readable as YAML: .* looks promise"),
        ("openapi: 3.1.0\nx: !!float ''", "not readable as YAML: .* looks promise"),
        ("openapi: 3.1.0\nx: !!bool words", "not readable as YAML: .* looks promise"),
        ("openapi: 3.1.0\nx: !!timestamp 2020-01-01", "not readable as YAML"),
        ("openapi: 3.1.0\nx: !!binary eA==", "not readable as YAML"),
        ("openapi: 3.1.0\nx: !!set {a}", "not readable as YAML"),
        ("openapi: 3.1.0\nx: !!map words", "not readable as YAML"),
        ("openapi: 3.1.0\nx: " + "9" * 5000, "line 2: a number has more than 300 characters"),
        ("openapi: 3.1.0\nx: {<<: words}", "not readable as YAML: .*merge"),
        ("openapi: 3.1.0\nx: &x {<<: *x}", "no end"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name_and_the_reason(tmp_path, text, words):
    with pytest.raises(BadDocument, match=words) as raised:
        source(text, tmp_path)
    assert str(raised.value).startswith(str(tmp_path / "document.yaml"))


def test_merge_keys_of_merge_keys_end(tmp_path):
    rows = ["x0: &x0 {" + ", ".join(f"k{n}: 1" for n in range(1000)) + "}"]
    rows += [f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    with pytest.raises(BadDocument, match="more than 1000000 values"):
        source("\n".join(["openapi: 3.1.0", *rows]), tmp_path)


def test_merge_keys_give_way_to_what_stands_beside_them_and_the_first_of_several_counts():
    text = "openapi: 3.1.0\na: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {z: 3, <<: [*a, *b]}\nd: {<<: *b, y: 4}"
    root = OpenApiDocument.read(text).root
    assert root["c"] == {"x": 1, "y": 1, "z": 3}
    assert root["d"] == {"y": 4, "z": 2}


def test_numbers_are_those_of_json():
    assert OpenApiDocument.read("openapi: 3.1.0\na: [089, 010, -7, +3]").root["a"] == [89, 10, -7, 3]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadDocument, match=r"missing\.yaml: cannot be read: No such file"):
        source(tmp_path / "missing.yaml")


JUNK: tuple[Any, ...] = (
    None, 5, "", "x", "#/x", "{y}", [], {}, [None], {"a": 5}, True, "a\0b", "\ud800", 10**30, float("inf"),
    {"$ref": 5}, {"$ref": "#"}, {"$ref": "#/paths"}, {"$ref": "#/components/schemas/Tree"}, {"in": "query"},
)  # fmt: skip


def places_in(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*at, key)
        yield from places_in(value, (*at, key))


WHOLE: Any = OpenApiDocument.read(SHOP.read_text()).root
PLACES = list(places_in(WHOLE))


@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(JUNK)), min_size=1, max_size=3))
@settings(max_examples=examples(300), deadline=None)
def test_whatever_stands_in_a_document_it_is_read_or_refused(changes):
    root = copy.deepcopy(WHOLE)
    for (*above, last), junk in changes:
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change took the place away
            functools.reduce(operator.getitem, above, root)[last] = copy.deepcopy(junk)
    try:
        tools = built(SOURCE, OpenApiDocument(root))
    except BadDocument:
        return
    for each in tools:
        with contextlib.suppress(SchemaError):
            compile_schema(whole_schema(each.parameters))


# Over the wire ------------------------------------------------------------------------------------


class Reading(BaseModel):
    city: str
    degrees: float
    note: str | None = None


def stations() -> FastAPI:
    app = FastAPI()
    readings: dict[str, Reading] = {}

    @app.get("/readings/{city}", operation_id="reading", tags=["read"])
    async def reading(city: str, unit: str = "celsius") -> dict[str, Any]:
        """What was measured in a city."""
        return {"city": city, "unit": unit, "found": city in readings}

    @app.put("/readings/{city}", operation_id="measure")
    async def measure(city: str, measured: Reading) -> Reading:
        readings[city] = measured
        return measured

    return app


@asynccontextmanager
async def opened_registry(
    place: str, rules: AddressRules = LOOPBACK, **said: Any
) -> AsyncIterator[tuple[Registry, OpenApiSource]]:
    found = OpenApiSource("stations", Api(rules=rules, **said), place, parsers=ReadingHere())
    registry = Registry(delay=lambda _: 0.01)
    registry.add_source(found)
    try:
        async with asyncio.timeout(30):
            await registry.open()
            yield registry, found
    finally:
        await registry.close()


@pytest.mark.anyio
async def test_a_fastapi_app_is_used_by_its_own_document():
    async with serve(stations()) as url, opened_registry(f"{url}/openapi.json") as (registry, _):
        assert [each.name for each in registry.tools()] == ["measure", "reading"]
        measure, reading = (each.tool for each in registry.tools())
        assert measure.check({"city": "Oslo", "body_city": "Oslo", "degrees": 4, "note": None}) is None
        outcome = await measure.executor.execute(
            ready("measure", city="Oslo?x=1", body_city="Oslo", degrees=4), an_occasion()
        )
        assert outcome == Returned('{"city":"Oslo","degrees":4.0,"note":null}')
        outcome = await reading.executor.execute(ready("reading", city="Oslo?x=1"), an_occasion())
        assert outcome == Returned('{"city":"Oslo?x=1","unit":"celsius","found":true}')
        outcome = await reading.executor.execute(ready("reading", city="a/b"), an_occasion())
        assert isinstance(outcome, Failed), "a slash would leave its segment"
        assert outcome.text.startswith("Not run: `city`")
        outcome = await reading.executor.execute(ready("reading", city="São Paulo", unit="kelvin"), an_occasion())
        assert isinstance(outcome, Returned)
        assert json.loads(outcome.text) == {"city": "São Paulo", "unit": "kelvin", "found": False}


class Box(BaseModel):
    label: str
    inner: list["Box"] = []


def echoing() -> FastAPI:
    """Answers with what it read out of each part of a request."""
    app = FastAPI()

    @app.post("/e/{place}", operation_id="everything")
    async def everything(
        place: str,
        box: Box,
        one: str,
        several: Annotated[list[str], Query()],
        maybe: Annotated[int | None, Query()] = None,
        x_word: Annotated[str, Header()] = "",
        crumb: Annotated[str, Cookie()] = "",
    ) -> dict[str, Any]:
        return {**locals(), "box": box.model_dump()}

    @app.post("/f", operation_id="fields")
    async def fields(one: Annotated[str, Form()], several: Annotated[list[str], Form()]) -> dict[str, Any]:
        return locals()

    return app


NASTY = ("a b", "a+b", "a%2Fb", "ä漢\U0001f600", "&=?#;,:@", "\"'<>\\", "null", "{x}", "-", "[1]", "x" * 5000)


@pytest.mark.anyio
@pytest.mark.parametrize("word", NASTY, ids=range(len(NASTY)))
async def test_a_server_reads_what_the_model_wrote(word):
    async with serve(echoing()) as url, opened_registry(f"{url}/openapi.json") as (registry, _):
        everything, fields = (each.tool for each in registry.tools())
        place = "plain" if "\\" in word or "%2F" in word else word  # those would leave their segment
        said: dict[str, Any] = {
            "place": place, "one": word, "several": [word, "", word], "maybe": 7,
            "label": word, "inner": [{"label": word, "inner": []}],
            "x-word": "plain", "crumb": "plain",
        }  # fmt: skip
        assert everything.check(said) is None
        outcome = await everything.executor.execute(ready("everything", **said), an_occasion())
        assert isinstance(outcome, Returned), outcome
        assert json.loads(outcome.text) == {
            "place": place, "one": word, "several": [word, "", word], "maybe": 7, "x_word": "plain", "crumb": "plain",
            "box": {"label": word, "inner": [{"label": word, "inner": []}]},
        }  # fmt: skip
        form = {"one": word, "several": [word, "b"]}
        assert fields.check(form) is None
        outcome = await fields.executor.execute(ready("fields", **form), an_occasion())
        assert isinstance(outcome, Returned), outcome
        assert json.loads(outcome.text) == form


@pytest.mark.anyio
async def test_a_document_that_cannot_be_had_is_listed_and_its_tools_appear_when_it_can():
    answers: list[Callable[[], tuple[int, str, bytes]]] = []
    good = json.dumps({"openapi": "3.1.0", "paths": {"/x": {"get": {"operationId": "x"}}}}).encode()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, mime_type, body = answers[0]()
        headers = [(b"content-type", mime_type.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    answers.append(lambda: (503, "text/plain", b"starting"))
    async with serve(app, lifespan="off") as url, opened_registry(f"{url}/openapi.json") as (registry, _):
        [status] = registry.sources()
        assert status.state in {SourceState.DOWN, SourceState.OPENING}
        assert "503" in status.error
        assert registry.tools() == ()
        answers[0] = lambda: (200, "text/html", b"<html>")
        await everything(lambda: "no mapping" in registry.sources()[0].error)
        answers[0] = lambda: (200, "application/json", good)
        await everything(lambda: bool(registry.tools()))
        assert registry.tools()[0].tool.source == f"GET {url}/x"


@pytest.mark.anyio
@pytest.mark.parametrize("place", ["http://127.0.0.1:9/openapi.json", "http://169.254.169.254/openapi.json"])
async def test_a_document_at_an_address_that_is_refused_is_not_fetched(place):
    async with opened_registry(place, PUBLIC_ONLY) as (registry, _):
        assert "not allowed" in registry.sources()[0].error


@pytest.mark.anyio
async def test_a_tool_whose_server_is_refused_does_not_run():
    found = source(base_url="http://127.0.0.1:9")
    outcome = await tool("echo", found).executor.execute(ready("echo", body="x"), an_occasion())
    await found.close()
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.REFUSED


@pytest.mark.anyio
async def test_a_document_from_the_net_does_not_say_who_gets_the_credentials():
    elsewhere = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://evil.example"}],
        "paths": {"/x": {"get": {"operationId": "x", "security": [{"k": []}]}}},
        "components": {"securitySchemes": {"k": {"type": "http", "scheme": "bearer"}}},
    }
    app = FastAPI(openapi_url=None)
    app.get("/openapi.json")(lambda: elsewhere)
    async with serve(app) as url:
        async with opened_registry(f"{url}/openapi.json", auth={"k": "secret"}) as (registry, _):
            assert "another than the document's" in registry.sources()[0].error
        async with opened_registry(f"{url}/openapi.json", auth={"k": "secret"}, base_url=url) as (registry, _):
            assert registry.tools()[0].tool.source == f"GET {url}/x"


@pytest.mark.anyio
async def test_names_that_are_not_legal_are_cleaned_as_long_as_they_stay_apart(tmp_path):
    names = ("users/get", "users.get", "teams/list", "x" * 80)
    file = tmp_path / "names.yaml"
    file.write_text(json.dumps(document({f"/{at}": {"get": {"operationId": name}} for at, name in enumerate(names)})))
    async with opened_registry(str(file)) as (registry, _):
        found = {each.original: each.name for each in registry.tools()}
    assert found["teams/list"] == "teams_list"
    assert found["x" * 80] == "x" * 64
    assert found["users/get"].startswith("users_get_")
    assert found["users/get"] != found["users.get"]


def test_a_password_in_an_address_is_sent_and_not_shown():
    one = tool("echo", base_url="https://me:pass@shop.example")
    assert one.source == "POST https://shop.example/echo"


@pytest.mark.anyio
async def test_what_is_left_out_is_listed_with_the_tools_that_cannot_be_offered():
    async with opened_registry(str(SHOP)) as (registry, _):
        listed = {each.name: each for each in registry.quarantined()}
        assert listed["upload"].source == "stations"
        assert "multipart/form-data" in listed["upload"].reason
        assert [each.reason for each in registry.quarantined() if each.name == "listOrders"] == []


def test_more_operations_than_anybody_can_offer_are_refused(monkeypatch):
    monkeypatch.setattr("callgate.tools.kinds.openapi.reading.MAX_TOOLS", 3)
    paths = {f"/{n}": {"get": {"operationId": f"o{n}"}} for n in range(4)}
    with pytest.raises(BadDocument, match="choose some with `include`"):
        operations_of(OpenApiDocument(document(paths)), source().terms())


def test_schemas_that_are_large_together_are_refused(monkeypatch):
    monkeypatch.setattr("callgate.tools.kinds.openapi.reading.MAX_SCHEMAS_BYTES", 2000)
    schema = {"type": "string", "enum": ["x" * 500]}
    paths = {f"/{n}": {"get": {"parameters": [{"name": "p", "in": "query", "schema": schema}]}} for n in range(4)}
    with pytest.raises(BadDocument, match="would become tools"):
        operations_of(OpenApiDocument(document(paths)), source().terms())


def test_a_server_whose_address_has_brackets_around_nothing_leaves_its_operations_out():
    root = {**document({"/x": {"get": {"operationId": "x"}}}), "servers": [{"url": "http://[]"}]}
    with pytest.raises(BadDocument, match="no address"):
        built(source(), OpenApiDocument(root))
