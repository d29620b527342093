"""No door lets more through than it says, and none reads more between two turns of the event loop than a slice."""

import asyncio
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import callgate
from callgate.api.strict_json import open_body
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import COARSE_SLICE, DOORS, MOST_VALUES, SLICE, SMALL, Door, TooMuch, Untrusted, open_text
from callgate.untrusted.marks import Bounds, Marks
from callgate.untrusted.messagepack import PACK_DOORS, SHARE, PackDoor, PackMarks, UntrustedPack
from callgate.untrusted.readers import msgpack_reader, read_value
from callgate.untrusted.slices import open_in_slices

for _module in pkgutil.walk_packages(callgate.__path__, "callgate."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)  # whoever has a door names it where it is imported


def _many(door: Door) -> bytes:
    return b"[" + b"{}," * min(door.values, MOST_VALUES) + b"{}]"


def _keyed(door: Door) -> bytes:
    return b"{" + b'"":0,' * min(door.keys, MOST_VALUES) + b'"":0}'


def _extreme(number: bytes) -> Callable[[Door], bytes]:
    return lambda door: b"[" + b",".join([number] * 20_000) + b"]"


HOSTILE: dict[str, Callable[[Door], bytes]] = {
    "too many values": _many,
    "too many keys": _keyed,
    "too deep": lambda door: b"[" * max(SMALL + 1, min(door.depth, door.values, MOST_VALUES) + 1),
    "extreme numbers": _extreme(b"1e308"),
    "small numbers": _extreme(b"2.5E-0308"),
    "too long": lambda door: b'"' + b"a" * door.bytes + b'"',
    "many escapes": lambda door: (
        b'"' + b'\\"' * min(door.bytes // 2, 1_000_000) + b'"' + b"," * (min(door.values, MOST_VALUES) + 1)
    ),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", DOORS)
def test_a_door_reads_a_slice_between_two_turns_and_lets_nothing_through_that_is_too_much(
    name: str, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = DOORS[name]
    if door.bytes > 20_000_000 and hostile == "too long":
        pytest.skip("its length is compared as that of the others is")
    data = HOSTILE[hostile](door)
    slices: list[int] = []
    coarse: list[int] = []
    feed = Marks.feed
    feed_bounds = Bounds.feed

    def counted(self: Marks, piece: bytes) -> None:
        slices[-1] += len(piece)
        feed(self, piece)

    def bounded(self: Bounds, text: bytes, start: int, end: int) -> None:
        coarse[-1] += len(text[start:end])
        feed_bounds(self, text, start, end)

    monkeypatch.setattr(Marks, "feed", counted)
    monkeypatch.setattr(Bounds, "feed", bounded)

    async def opened() -> bool:
        async def turn() -> None:
            while True:
                slices.append(0)
                coarse.append(0)
                await asyncio.sleep(0)

        slices.append(0)
        coarse.append(0)
        turning = asyncio.create_task(turn())
        try:
            await open_in_slices(Untrusted(data, door))
        except TooMuch:
            return False
        finally:
            turning.cancel()
        return True

    went_through = asyncio.run(opened())
    assert max(slices) <= SLICE
    assert max(coarse) <= COARSE_SLICE
    if hostile == "too long" or len(data) > SMALL or len(data) > door.bytes:
        is_refused = {"too many keys": door.keys <= MOST_VALUES, "too deep": door.depth < len(data)}
        assert went_through == (door.is_skimmed and not is_refused.get(hostile, False))
    assert door.uncounted <= door.bytes


def _nested(door: PackDoor) -> bytes:
    return b"\x91" * (door.depth + 1) + b"\xc0"


PACK_HOSTILE: dict[str, Callable[[PackDoor], bytes]] = {
    "too many values": lambda door: msgspec.msgpack.encode([0] * door.values),
    "too many claimed": lambda door: b"\xdd\xff\xff\xff\xff" + bytes(SMALL),
    "too deep": _nested,
    "far too deep": lambda door: b"\x91" * 100_000,
    "deep behind a field": lambda door: b"\x81\xa1x" + _nested(door),
    "too long": lambda door: bytes(door.bytes + 1),
}


@pytest.mark.parametrize("hostile", PACK_HOSTILE)
@pytest.mark.parametrize("name", PACK_DOORS)
def test_a_door_for_messagepack_counts_a_share_between_two_turns_and_lets_nothing_through_that_is_too_much(
    name: str, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = PACK_DOORS[name]
    if door.bytes > 20_000_000 and hostile == "too long":
        pytest.skip("its length is compared as that of the others is")
    shares = [0]
    count = PackMarks.count

    def counted(self: PackMarks, most: int) -> None:
        shares[-1] += most
        count(self, most)

    monkeypatch.setattr(PackMarks, "count", counted)

    async def turn() -> None:
        while True:
            shares.append(0)
            await asyncio.sleep(0)

    async def opened() -> None:
        turning = asyncio.create_task(turn())
        try:
            await open_in_slices(UntrustedPack(PACK_HOSTILE[hostile](door), door))
        finally:
            turning.cancel()

    with pytest.raises(TooMuch):
        asyncio.run(opened())
    assert max(shares) <= SHARE


@pytest.mark.parametrize("name", PACK_DOORS)
def test_what_no_door_for_messagepack_is_there_to_refuse_passes(name: str) -> None:
    small = msgspec.msgpack.encode(["a", 1])
    assert msgpack_reader(list[Any])(UntrustedPack(small, PACK_DOORS[name]).open()) == ["a", 1]


@pytest.mark.parametrize("name", DOORS)
def test_what_no_door_is_there_to_refuse_passes(name: str) -> None:
    small = b'{"model": "m", "messages": []}'
    assert read_value(Untrusted(small, DOORS[name]).open()) == {"model": "m", "messages": []}


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([b"1.25e-07"] * 20_000) + b"]",
        b"[" + b",".join([b'"e308"'] * 20_000) + b"]",
        b"[" + b",".join([b"1e308"] * 4_000 + [b"10"] * 20_000) + b"]",
        b'["' + b"5e308f0,0" * 20_000 + b'"]',
    ],
    ids=["usual exponents", "in strings", "a few", "within one string"],
)
def test_other_numbers_and_words_like_them_pass(text: bytes) -> None:
    assert Untrusted(text, DOORS["a client's body"]).open() == text


def test_a_string_full_of_marks_is_one_value() -> None:
    door = DOORS["arguments inside a text"]
    text = '"' + "{[," * MOST_VALUES + '"'
    assert open_text(text, door) == text


def test_an_open_that_is_not_in_slices_refuses_the_same() -> None:
    door = DOORS["arguments inside a text"]
    with pytest.raises(TooMuch) as caught:
        open_text("[" * (SMALL + 1), door)
    assert caught.value.what == "levels"
    assert caught.value.limit == door.depth


def test_a_clients_body_of_numbers_that_take_long_to_read_is_refused() -> None:
    with pytest.raises(ChatError) as refused:
        open_body(b'{"a":[' + b"1e308," * 90_000 + b"1]}")
    assert (refused.value.status, refused.value.code) == (400, "too_many_values")
