import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.callers.origin_guard import origin_guard

LOCAL = origin_guard("127.0.0.1", keyless=True)


def refused(guard, host, origin=None):
    headers = {name: value for name, value in (("host", host), ("origin", origin)) if value is not None}
    error = guard.refusal(headers)
    assert error is None or error.status == 403
    return None if error is None else error.code


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LOCALHOST:8000",
        "127.0.0.1:8000",
        "127.1.2.3",
        "[::1]:8000",
        "[::1]",
        "localhost.:8000",
    ],
)
def test_names_of_this_machine_are_answered(host):
    assert refused(LOCAL, host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "192.168.1.4:8000",
        "[::2]:8000",
        "0.0.0.0:8000",
        "[::1]evil",
        "[::1]:8000.evil.example",
        "[localhost]",
        "[127.0.0.1]",
        "::1",
        "127.0.0.1.",
        "127.0.0.1.:8000",
        "127.0.0.1:8000:80",
        "127.0.0.1:evil",
        "localhost..",
        "user@localhost",
        "localhost/a",
        "127.0.0.1 evil.example",
        "x.localhost",
        "host.docker.internal:8000",
        "host.containers.internal",
        "",
        None,
    ],
)
def test_a_name_that_was_pointed_here_is_refused(host):
    assert refused(LOCAL, host) == "host_not_allowed"


def test_a_name_of_this_machine_in_containers_is_answered_where_the_config_names_it():
    guard = origin_guard("127.0.0.1", keyless=True, allowed_hosts=["host.docker.internal", "app.localhost"])

    assert refused(guard, "host.docker.internal:8000") is None
    assert refused(guard, "app.localhost.:8000") is None
    assert refused(guard, "other.localhost") == "host_not_allowed"


def test_the_public_address_is_one_of_its_names():
    guard = origin_guard("127.0.0.1", keyless=True, public_url="https://LLM.example.com/v1")

    assert refused(guard, "llm.example.com", "https://llm.example.com") is None
    assert refused(guard, "llm.example.com.evil.example") == "host_not_allowed"


OPEN = origin_guard(
    "0.0.0.0", keyless=True, public_url="https://llm.example.com", allowed_hosts=["Callgate", "box.lan."]
)


@pytest.mark.parametrize("listening", ["127.0.0.1", "0.0.0.0", "::"])
def test_with_keys_any_name_is_answered(listening):
    assert refused(origin_guard(listening, keyless=False), "anything.example") is None


@pytest.mark.parametrize(
    "host",
    [
        "192.168.1.4:8000",
        "10.0.0.1",
        "[fd00::1]:8000",
        "127.0.0.1",
        "localhost:8000",
        "LLM.example.com",
        "callgate:8000",
        "box.lan",
    ],
)
def test_without_keys_others_reach_it_by_its_addresses_and_the_names_of_the_config(host):
    assert refused(OPEN, host) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "10.0.0.1.evil.example", "other", "1.2.3", "", None]
)
def test_without_keys_a_host_that_is_not_configured_is_refused_wherever_it_listens(host):
    """A page that points its own name here would be the same origin as the server."""
    assert refused(OPEN, host) == "host_not_allowed"


def test_a_star_among_the_names_is_any_name():
    assert refused(origin_guard("0.0.0.0", keyless=True, allowed_hosts=["*"]), "anything.example") is None


def test_a_name_that_it_listens_on_is_one_of_its_names():
    assert refused(origin_guard("box.lan", keyless=True), "box.lan:8000") is None


def test_with_keys_a_page_or_desktop_app_may_try_since_it_has_nothing_to_come_in_with():
    assert refused(origin_guard("127.0.0.1", keyless=False), "evil.example", "app://obsidian.md") is None


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://localhost:3000", "http://127.0.0.1:8001", "null", "", "http://[::1", "http://"],
)
def test_a_web_page_from_elsewhere_is_refused(origin):
    assert refused(LOCAL, "127.0.0.1:8000", origin) == "origin_not_allowed"
    assert refused(OPEN, "llm.example.com", origin) == "origin_not_allowed"


def test_its_own_page_and_no_page_at_all_are_let_in():
    assert refused(LOCAL, "127.0.0.1:8000", "http://127.0.0.1:8000") is None
    assert refused(LOCAL, "localhost:8000", "http://LOCALHOST:8000") is None
    assert refused(LOCAL, "127.0.0.1:8000", None) is None


def test_a_page_that_the_config_names_is_let_in():
    guard = origin_guard("127.0.0.1", keyless=True, cors_origins=["https://chat.example.com/"])

    assert refused(guard, "localhost:8000", "https://chat.example.com") is None
    assert refused(guard, "localhost:8000", "https://chat.example.com.evil.example") == "origin_not_allowed"
    assert refused(guard, "evil.example", "https://chat.example.com") == "host_not_allowed"


def test_a_star_lets_any_page_in_but_no_foreign_host():
    guard = origin_guard("127.0.0.1", keyless=True, cors_origins=["*"])

    assert refused(guard, "localhost", "https://any.example") is None
    assert refused(guard, "evil.example", "https://evil.example") == "host_not_allowed"


@given(st.text(), st.text())
def test_whatever_the_headers_hold_there_is_an_answer(host, origin):
    for guard in (LOCAL, OPEN):
        assert refused(guard, host, origin) in {None, "host_not_allowed", "origin_not_allowed"}
