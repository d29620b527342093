import pytest

from callgate.calls.names import close_names, inner_calls, is_parallel, resolve_name

OFFERED = {"get_weather", "search-docs", "functions.odd", "math:2"}


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_an_exact_name_wins_over_every_reading_of_it(name):
    found = resolve_name(name, OFFERED)
    assert found is not None
    assert (found.name, found.repaired) == (name, False)


@pytest.mark.parametrize(
    "raw",
    [
        " get_weather\n",
        "get_weather<|channel|>commentary",
        "get_weather <|message|>",
        "functions.get_weather",
        "function.get_weather",
        "tools.get_weather",
        "tool.get_weather",
        "default_api.get_weather",
        "default_api:get_weather",
        "functions:get_weather",
        "get_weather:0",
        "functions.get_weather:12",
        " functions.get_weather:3<|end|>",
    ],
)
def test_what_templates_leave_on_a_name_is_taken_off(raw):
    found = resolve_name(raw, OFFERED)
    assert found is not None
    assert (found.name, found.repaired) == ("get_weather", True)


@pytest.mark.parametrize(
    "raw",
    [
        "Get_Weather",
        "get-weather",
        "get_weathr",
        "search_docs",
        "functions.functions.get_weather",
        "api.get_weather",
        "get_weather:x",
        "get_weather:",
        "get_weather.0",
        "<|get_weather",
        "",
        "weather",
    ],
)
def test_a_name_that_only_looks_alike_is_another_tool(raw):
    assert resolve_name(raw, OFFERED) is None


def test_similar_names_are_suggested_for_the_model_to_read():
    assert close_names("Get-Weather", OFFERED) == ["get_weather"]
    assert close_names("x" * 100_000, OFFERED) == []


@pytest.mark.parametrize(
    "raw", ["multi_tool_use.parallel", "functions.multi_tool_use.parallel", " multi_tool_use.parallel"]
)
def test_the_wrapper_of_several_calls_is_known_by_its_name(raw):
    assert is_parallel(raw, OFFERED)
    assert not is_parallel(raw, {"multi_tool_use.parallel"})


def test_the_wrapper_holds_calls_with_names_and_objects():
    use = {"recipient_name": "functions.get_weather", "parameters": {"city": "Goa"}}
    assert inner_calls({"tool_uses": [use, use]}) == [("functions.get_weather", {"city": "Goa"})] * 2


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"tool_uses": []},
        {"tool_uses": {}},
        {"tool_uses": [{"recipient_name": "a"}]},
        {"tool_uses": [{"recipient_name": "a", "parameters": "{}"}]},
        {"tool_uses": [{"recipient_name": 1, "parameters": {}}]},
        {"tool_uses": [{"recipient_name": "a", "parameters": {}}, "b"]},
        {"tool_uses": [{"recipient_name": "a", "parameters": {}, "more": 1}]},
        {"tool_uses": [{"recipient_name": "a", "parameters": {}}], "more": 1},
    ],
)
def test_any_other_shape_is_no_wrapper(arguments):
    assert inner_calls(arguments) is None
