"""Bounds of addresses hold for whoever fetches them, however an address is written."""

import pytest

from callgate.hosted.domains import DomainRules

WITHIN = DomainRules(field="allowed_domains", listed=("ok.example",))
WITHOUT = DomainRules(field="blocked_domains", listed=("evil.example",))


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example\\@ok.example/",
        "https://evil.example:80\\@ok.example/",
        "https://x@ok.example/",
        "https://ok.example\\.evil.example/",
        "https:ok.example",
        "ok.example/page",
        "https://ok%2eexample/",
        "https:// ok.example/",
        "https://[/",
        "https://\ud800.ok.example/",
    ],
    ids=ascii,
)
def test_an_address_that_may_be_read_as_another_is_not_within(url: str) -> None:
    assert not WITHIN.admits(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://EVIL.example./",
        "https:/evil.example/",
        "https:evil.example",
        "///evil.example",
        "evil.example/page",
        "https://evil%2eexample/",
        "https://\uff45vil.example/",
        "https://evil\u3002example/",
        "https://ok.example@evil.example/",
        "https://evil.example\\ok.example",
    ],
    ids=ascii,
)
def test_an_address_that_may_be_read_as_a_blocked_one_is_not_admitted(url: str) -> None:
    assert not WITHOUT.admits(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://ok.example",
        "http://sub.ok.example:8080/a?b=@#c@d",
        "HTTPS://OK.example./",
        "https://b\u00fccher.ok.example/",
        "https://ok.example?q",
    ],
    ids=ascii,
)
def test_plain_addresses_are_admitted(url: str) -> None:
    assert WITHIN.admits(url)
    assert WITHOUT.admits(url)


def test_other_addresses_are_outside_what_is_blocked() -> None:
    assert WITHOUT.admits("http://[2001:db8::1]/")
    assert WITHOUT.admits("http://192.0.2.1:80/")
    assert not WITHIN.admits("http://[2001:db8::1]/")


def test_what_a_model_names_is_given_on_only_where_it_is_a_domain() -> None:
    assert WITHIN.narrowed(["ok.example/ OR site:evil.example", "evil.example@ok.example"]) == ["ok.example"]
    assert WITHIN.narrowed(["a.ok.example"]) == ["a.ok.example"]
