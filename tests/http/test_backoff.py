"""Waiting before another try."""

import pytest

from callgate.http.backoff import full_jitter


@pytest.mark.parametrize(("failures", "ceiling"), [(0, 0.5), (1, 1.0), (3, 4.0), (7, 60.0), (10_000, 60.0)])
def test_the_ceiling_doubles_up_to_the_longest_wait(failures, ceiling):
    def wait(chance, least=0.0):
        return full_jitter(failures, first=0.5, longest=60.0, least=least, chance=lambda: chance)

    assert (wait(0.0), wait(1.0)) == (0.0, ceiling)
    assert (wait(0.0, 0.1), wait(1.0, 0.1)) == (pytest.approx(ceiling / 10), pytest.approx(ceiling))


def test_waits_are_spread():
    waits = {full_jitter(3, first=0.5, longest=60.0) for _ in range(50)}
    assert len(waits) > 40
