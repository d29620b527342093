"""Who is remembered by the head of a request is the caller that the keys would name."""

import time

import pytest
from msgspec.structs import replace

from callgate.access.keys import NO_LOOK, KeyEntry, Keyring, mint_key
from callgate.callers.caller import Caller, Person
from callgate.callers.rights import Access, CallerMemory, NoKeys
from callgate.conversation.errors import ChatError

KEY, HASH = mint_key()
OTHER_KEY, OTHER_HASH = mint_key()
ALICE = KeyEntry("alice", HASH)
HEADERS = {"authorization": f"Bearer {KEY}"}


class Source:
    """Keys that a test sets."""

    in_use = True
    look = NO_LOOK

    def __init__(self, *keys: KeyEntry) -> None:
        self.keys = keys

    def entries(self) -> tuple[KeyEntry, ...]:
        return self.keys


class CountedAccess(Access):
    """Counts how often the keys are asked."""

    asked = 0

    def admit(self, headers):
        self.asked += 1
        return super().admit(headers)


def access_of(keys) -> CountedAccess:
    return CountedAccess(keys, lambda headers: None, is_local=True)


def refusal(memory: CallerMemory, access: Access) -> str | None:
    with pytest.raises(ChatError) as refused:
        memory.admit_fast(access, HEADERS)
    return refused.value.code


def test_a_caller_is_asked_for_once() -> None:
    access = access_of(Keyring([], source=Source(ALICE)))
    memory = CallerMemory()
    callers = [memory.admit_fast(access, HEADERS) for _ in range(5)]
    assert callers == [access.admit(HEADERS)] * 5
    assert access.asked == 2


def test_a_revoked_key_is_refused_with_the_next_request() -> None:
    source = Source(ALICE)
    access = access_of(Keyring([], source=source))
    memory = CallerMemory()
    memory.admit_fast(access, HEADERS)
    source.keys = (KeyEntry("bob", OTHER_HASH),)
    assert refusal(memory, access) == "invalid_api_key"
    source.keys = (ALICE,)
    assert memory.admit_fast(access, HEADERS).name == "alice"


def test_a_key_with_other_rights_is_a_caller_with_other_rights() -> None:
    source = Source(ALICE)
    access = access_of(Keyring([], source=source))
    memory = CallerMemory()
    assert not memory.admit_fast(access, HEADERS).admin
    source.keys = (replace(ALICE, admin=True),)
    assert memory.admit_fast(access, HEADERS).admin


def test_a_key_ends_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    access = access_of(Keyring([replace(ALICE, expires_at=now + 60)]))
    memory = CallerMemory()
    memory.admit_fast(access, HEADERS)
    monkeypatch.setattr(time, "time", lambda: now + 60)
    assert refusal(memory, access) == "invalid_api_key"


def test_another_reading_of_the_config_is_asked_anew() -> None:
    memory = CallerMemory()
    memory.admit_fast(access_of(Keyring([ALICE])), HEADERS)
    assert refusal(memory, access_of(Keyring([KeyEntry("bob", OTHER_HASH)]))) == "invalid_api_key"


def test_a_head_that_was_refused_is_refused_again() -> None:
    memory = CallerMemory()
    access = access_of(Keyring([KeyEntry("bob", OTHER_HASH)]))
    assert [refusal(memory, access) for _ in range(3)] == ["invalid_api_key"] * 3


class Signed(NoKeys):
    """Knows one person."""

    person = Caller("p", person=Person(subject="1", issuer="i", shown="P", group="g", account="a"))

    def identify(self, headers):
        return self.person


@pytest.mark.parametrize("keys", [Signed(), NoKeys()], ids=["person", "anonymous"])
def test_who_may_be_another_one_without_a_change_of_keys_is_not_remembered(keys) -> None:
    access = access_of(keys)
    memory = CallerMemory()
    for _ in range(3):
        memory.admit_fast(access, HEADERS)
    assert access.asked == 3
