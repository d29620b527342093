import random
import string

import pytest

from callgate.tools.search_index import (
    MAX_TERMS,
    SearchIndex,
    ToolText,
    first_sentence,
    parameter_names,
    words_of,
)


def text(name: str, server: str = "", description: str = "", parameters: str = "") -> ToolText:
    return ToolText(
        address=f"{server or 'config'}/{name}", name=name, server=server, description=description, parameters=parameters
    )


SHOP = [
    text("create_order", "shop", "Creates an order for a customer.", "customer items"),
    text("cancelOrder", "shop", "Cancels an order that was not sent yet.", "order_id reason"),
    text("list_customers", "shop", "Lists customers, the newest first. Pages of fifty.", "page"),
    text("send_parcel", "post", "Sends a parcel and returns its number.", "address weight"),
    text("track_parcel", "post", "Says where a parcel is.", "number"),
    text("list_orders", "warehouse", "Lists what was ordered.", "since"),
]
ALL = frozenset(tool.address for tool in SHOP)


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("cancel an order", "shop/cancelOrder"),
        ("where is the parcel", "post/track_parcel"),
        ("listing customers", "shop/list_customers"),
        ("warehouse orders", "warehouse/list_orders"),
        ("weight", "post/send_parcel"),
        ("CANCEL_ORDER", "shop/cancelOrder"),
    ],
)
def test_the_best_tool_for_some_words_comes_first(query: str, best: str):
    assert SearchIndex(SHOP).nearest(query, ALL, 3)[0] == best


def test_words_are_split_where_names_are_and_lose_their_endings():
    assert words_of("listPullRequests HTTPServer2 get_the_orders") == [
        "list", "pull", "request", "listpullrequest", "http", "server", "2", "httpserver2", "get", "order"
    ]  # fmt: skip


def test_no_word_of_a_query_finds_nothing():
    index = SearchIndex(SHOP)
    assert index.nearest("pizza", ALL, 5) == []
    assert index.nearest("", ALL, 5) == []
    assert index.nearest("the of and", ALL, 5) == []
    assert SearchIndex().nearest("order", ALL, 5) == []


def test_only_tools_among_the_allowed_ones_are_found():
    random_words = random.Random(3)
    index = SearchIndex(SHOP)
    allowed = frozenset(tool.address for tool in SHOP if tool.server == "post")
    vocabulary = [word for tool in SHOP for field in tool.fields().values() for word in field.split()]
    for _ in range(1000):
        query = " ".join(random_words.choices(vocabulary, k=random_words.randint(1, 6)))
        assert set(index.nearest(query, allowed, 20)) <= allowed


def test_the_order_of_equal_tools_is_that_of_the_list():
    same = [text(f"tool_{letter}", "one", "Copies it.") for letter in "abc"]
    assert SearchIndex(same).nearest("copies", {tool.address for tool in same}, 3) == [tool.address for tool in same]


def test_a_description_stuffed_with_words_wins_no_search_by_them():
    everything = " ".join(word for tool in SHOP for word in tool.description.split()) * 50
    stuffed = text("best_tool", "spam", everything)
    index = SearchIndex([*SHOP, stuffed])
    for query, best in (("cancel an order", "shop/cancelOrder"), ("list customers", "shop/list_customers")):
        assert index.nearest(query, {*ALL, stuffed.address}, 1) == [best]


def test_a_long_query_costs_no_more_than_its_first_words():
    rubbish = " ".join("".join(random.Random(at).choices(string.ascii_lowercase, k=8)) for at in range(MAX_TERMS))
    assert SearchIndex(SHOP).nearest(f"{rubbish} parcel", ALL, 5) == []
    assert SearchIndex(SHOP).nearest(f"send parcel {rubbish} " * 1000, ALL, 1) == ["post/send_parcel"]


def test_a_sentence_ends_where_it_does_and_somewhere():
    assert first_sentence("Reads a file. It may be long.") == "Reads a file."
    assert first_sentence("v1.2 of it\nmore") == "v1.2 of it"
    assert len(first_sentence("x" * 5000)) == 300


def test_the_names_of_parameters_are_read_where_there_are_any():
    assert parameter_names({"properties": {"city": {}, "unit": {}}}) == "city unit"
    assert parameter_names({"properties": ["odd"]}) == ""
    assert parameter_names({}) == ""
