import hashlib
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from structlog.testing import capture_logs

from callgate.access.keys import NO_LOOK, KeyEntry, Keyring, WatchedKeys, hash_key, mint_key
from callgate.access.settings import Key
from callgate.api.rights import seen_by
from callgate.callers.caller import ANONYMOUS, Caller
from callgate.callers.exposure import check_exposure
from callgate.callers.origin_guard import is_loopback
from callgate.callers.rights import Access
from callgate.conversation.errors import ChatError

SECRET, HASH = mint_key()
OTHER, OTHER_HASH = mint_key()
RING = Keyring(
    [KeyEntry("alice", HASH, ("openai/*", "demo"), ("clock",)), KeyEntry("bob", OTHER_HASH)],
)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {SECRET}"},
        {"authorization": f"bearer  {SECRET} "},
        {"api-key": SECRET},
        {"x-api-key": SECRET},
        {"authorization": "Basic abc", "x-api-key": SECRET},
    ],
)
def test_a_key_is_found_in_any_of_the_headers_that_clients_use(headers):
    assert RING.identify(headers) == Caller("alice", ("openai/*", "demo"), ("clock",))


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {SECRET}", "x-api-key": SECRET},
        {"authorization": f"Bearer {SECRET}", "api-key": f" {SECRET}", "x-api-key": SECRET},
        {"authorization": f"Basic {OTHER}", "api-key": SECRET, "x-api-key": SECRET},
    ],
)
def test_the_same_key_may_come_more_than_once(headers):
    assert RING.identify(headers).name == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer", "api-key": SECRET},
        {"authorization": "Bearer ", "x-api-key": SECRET},
        {"authorization": "", "x-api-key": SECRET},
        {"authorization": f"Bearer {SECRET}", "x-api-key": ""},
        {"authorization": f"Bearer {SECRET}", "api-key": "  "},
        {"api-key": SECRET, "x-api-key": ""},
        {"authorization": f"Bearer {SECRET}", "x-api-key": OTHER},
        {"authorization": f"Bearer {OTHER}", "api-key": SECRET},
        {"authorization": "Bearer nobody", "api-key": SECRET},
        {"api-key": SECRET, "x-api-key": OTHER},
        {"authorization": f"Bearer {SECRET}", "api-key": SECRET, "x-api-key": OTHER},
    ],
)
def test_credentials_that_differ_or_of_which_one_is_empty_are_refused(headers):
    with pytest.raises(ChatError) as refused:
        RING.identify(headers)

    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    assert "Send" in refused.value.message
    assert SECRET not in refused.value.message
    assert OTHER not in refused.value.message


def test_each_key_is_its_own_caller():
    assert RING.identify({"api-key": OTHER}).name == "bob"


@pytest.mark.parametrize(
    "wrong",
    [SECRET[:-1], SECRET + "x", SECRET.upper(), HASH, HASH.removeprefix("sha256:"), "*", "ключ", "x" * 10_000],
    ids=["shorter", "longer", "upper", "hash", "bare-hash", "star", "letters", "long"],
)
def test_a_wrong_key_is_refused_and_never_echoed(wrong):
    with pytest.raises(ChatError) as refused:
        RING.identify({"authorization": f"Bearer {wrong}"})

    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    assert refused.value.envelope()["error"]["message"] == "Incorrect API key provided."
    assert wrong == "*" or wrong not in repr(refused.value) + str(refused.value.detail)


@pytest.mark.parametrize("headers", [{}, {"authorization": ""}, {"authorization": "Bearer "}, {"x-api-key": "  "}])
def test_a_missing_key_is_refused_with_a_hint_how_to_send_one(headers):
    with pytest.raises(ChatError) as refused:
        RING.identify(headers)

    assert refused.value.status == 401
    assert "Authorization: Bearer" in refused.value.message


@given(st.text(st.characters()))
def test_no_text_but_the_key_is_let_in(text):
    with pytest.raises(ChatError):
        RING.identify({"authorization": f"Bearer {text}", "x-api-key": text})


@pytest.mark.parametrize("ring", [Keyring([]), Keyring([KeyEntry("alice", HASH)], off=True)])
def test_without_keys_or_with_auth_off_any_key_is_ignored(ring):
    assert ring.open
    assert ring.identify({}) is ANONYMOUS
    assert ring.identify({"authorization": "Bearer whatever"}) is ANONYMOUS
    assert ANONYMOUS.anonymous
    assert ANONYMOUS.may_ask("anything")


def test_a_minted_key_has_our_prefix_enough_chance_in_it_and_its_own_hash():
    key, written = mint_key()

    assert key.startswith("cg-")
    assert len(key) > 43
    assert written == "sha256:" + hashlib.sha256(key.encode()).hexdigest() == hash_key(key)
    assert mint_key()[0] != key


def test_globs_select_the_models_that_a_caller_may_use():
    caller = RING.identify({"api-key": SECRET})

    assert [name for name in ("openai/gpt", "demo", "demo2", "OPENAI/gpt", "azure/x") if caller.may_ask(name)] == [
        "openai/gpt",
        "demo",
    ]


def test_a_name_with_brackets_is_matched_as_it_is_written():
    assert Caller("x", models=("tuned[1]",)).may_ask("tuned[1]")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_may_be_served_without_keys(host):
    assert is_loopback(host)
    assert check_exposure(host, "keys", 0) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.com", "127.0.0.1.example.com", ""])
def test_any_other_address_needs_a_key_or_an_explicit_setting(host):
    problem = check_exposure(host, "keys", 0)

    assert problem is not None
    assert "auth: off" in problem
    assert check_exposure(host, "off", 0) is None
    assert check_exposure(host, "keys", 1) is None


# Keys that end, and keys that are exchanged ---------------------------------------------------------------------------


def test_a_key_is_refused_from_the_moment_that_it_ends_and_keys_stay_required(monkeypatch):
    ring = Keyring([KeyEntry("alice", HASH, expires_at=1_000.0)])
    monkeypatch.setattr(time, "time", lambda: 999.9)
    assert ring.identify({"authorization": f"Bearer {SECRET}"}).name == "alice"
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    with pytest.raises(ChatError, match="expired") as refused:
        ring.identify({"authorization": f"Bearer {SECRET}"})
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    assert not ring.open


def test_the_key_that_was_replaced_is_the_same_caller_until_its_end_or_the_new_one_s(monkeypatch):
    entry = KeyEntry("alice", OTHER_HASH, old_hash=HASH, old_expires_at=1_000.0, expires_at=2_000.0)
    ring = Keyring([entry])
    monkeypatch.setattr(time, "time", lambda: 999.0)
    assert ring.identify({"api-key": SECRET}) == ring.identify({"api-key": OTHER})
    monkeypatch.setattr(time, "time", lambda: 1_001.0)
    with pytest.raises(ChatError, match="expired"):
        ring.identify({"api-key": SECRET})
    assert ring.identify({"api-key": OTHER}).name == "alice"
    endless = Keyring([KeyEntry("bob", OTHER_HASH, old_hash=HASH, expires_at=1_000.0)])
    with pytest.raises(ChatError, match="expired"):
        endless.identify({"api-key": SECRET})


class Source:
    """Keys that a test sets."""

    look = NO_LOOK

    def __init__(self) -> None:
        self.keys: tuple[KeyEntry, ...] = ()

    def entries(self) -> tuple[KeyEntry, ...]:
        return self.keys

    @property
    def in_use(self) -> bool:
        return bool(self.keys)


def test_the_first_key_of_a_server_that_let_everyone_in_is_logged_once():
    source = Source()
    ring = Keyring([], source=source)
    ring.identify({})
    with capture_logs() as logs:
        source.keys = (KeyEntry("alice", HASH),)
        with pytest.raises(ChatError):
            ring.identify({})
        source.keys = (KeyEntry("alice", HASH), KeyEntry("bob", OTHER_HASH))
        ring.identify({"api-key": SECRET})
        Keyring([], source=source)
    assert [(each["event"], each["log_level"], each["keys"]) for each in logs] == [
        ("keys_required", "warning", ["alice"])
    ]


def test_no_key_has_the_name_of_whoever_comes_without_one():
    with pytest.raises(ValidationError, match="without a key"):
        Key.model_validate({"name": "anonymous", "hash": HASH})
    runtime: Any = SimpleNamespace(access=Access(RING, lambda _: None, is_local=False))
    with pytest.raises(ChatError):
        seen_by(runtime, Caller("anonymous", see="own"))  # a key that was stored before
    assert seen_by(runtime, Caller("alice", see="own")) == "alice"


def test_a_key_that_is_made_with_rights_while_the_server_runs_is_told_once() -> None:
    class Source:
        in_use = True
        look = NO_LOOK
        current: tuple[KeyEntry, ...] = (KeyEntry("old", hash_key("a"), admin=True),)

        def entries(self) -> tuple[KeyEntry, ...]:
            return self.current

    source = Source()
    told: list[str] = []
    watched = WatchedKeys(source, lambda widened, hashed: told.append(widened))
    assert watched.entries() == source.current
    plain = KeyEntry("plain", hash_key("b"))
    source.current = (*source.current, plain, KeyEntry("eve", hash_key("c"), approve=True, see="all"))
    for _ in range(2):
        assert watched.entries() == source.current
    assert told == ["keys.eve may approve, see all runs"]
    source.current = (plain,)
    watched.entries()
    assert len(told) == 1


def test_an_empty_list_of_keys_is_no_consent() -> None:
    assert check_exposure("127.0.0.1", "keys", 0) is None
    assert "empty list" in (check_exposure("127.0.0.1", "keys", 0, has_empty_list=True) or "")
    assert check_exposure("127.0.0.1", "keys", 1, has_empty_list=True) is None
    assert check_exposure("127.0.0.1", "off", 0, has_empty_list=True) is None


def test_the_generation_of_keys_changes_when_they_do_and_when_one_expires(monkeypatch):
    entries = (KeyEntry("alice", HASH, expires_at=time.time() + 60),)
    source = SimpleNamespace(in_use=True, look=NO_LOOK, entries=lambda: entries)
    ring = Keyring([], source=source)
    first = ring.generation()
    assert ring.generation() == first
    entries += (KeyEntry("bob", OTHER_HASH),)  # type: ignore[assignment]
    assert ring.last_generation() == first
    second = ring.generation()
    assert second == ring.generation() != first
    later = time.time() + 61
    monkeypatch.setattr("callgate.access.keys.time.time", lambda: later)
    third = ring.generation()
    assert third == ring.generation() == ring.last_generation() != second
