from callgate.recorder.last_hour import MINUTES, ROWS_PER_MINUTE, LastHour
from callgate.recorder.usage import KeyUsage

NOON = 1_795_089_600.0
"""2026-11-19T12:00Z"""


def used(requests: int, failed: int = 0, model: str = "m") -> KeyUsage:
    return KeyUsage("2026-11-19", "alice", model, requests=requests, failed=failed)


def test_a_minute_is_added_up_and_forgotten_an_hour_later() -> None:
    hour = LastHour()
    hour.add([used(1), used(2, 1)], NOON)
    hour.add([used(4)], NOON + 59)
    hour.add([used(8)], NOON + 60)
    [first, second] = hour.used((), NOON + 60)
    assert (first.day, first.requests, first.failed, second.day, second.requests) == (
        "2026-11-19T12:00Z", 7, 1, "2026-11-19T12:01Z", 8,
    )  # fmt: skip
    assert [each.requests for each in hour.used((), NOON + (MINUTES - 1) * 60)] == [7, 8]
    assert [each.requests for each in hour.used((), NOON + MINUTES * 60)] == [8]
    assert hour.used((), NOON + 2 * MINUTES * 60) == []


def test_what_was_not_added_yet_is_of_this_minute() -> None:
    hour = LastHour()
    [now] = hour.used([used(3)], NOON)
    assert (now.day, now.requests) == ("2026-11-19T12:00Z", 3)
    assert hour.used((), NOON) == []


def test_many_keys_and_models_take_no_more_than_so_much_and_nothing_is_lost() -> None:
    hour = LastHour()
    hour.add([used(1, model=f"m{number}") for number in range(3 * ROWS_PER_MINUTE)], NOON)
    found = hour.used((), NOON)
    assert len(found) == ROWS_PER_MINUTE + 1
    assert sum(each.requests for each in found) == 3 * ROWS_PER_MINUTE
