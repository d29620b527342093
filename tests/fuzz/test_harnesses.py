"""The harnesses without a fuzzer: the committed corpus, and a few hundred mutations of it that are the same every time."""

from math import inf

import pytest

from callgate.text_calls.reader import FORMATS
from tests.chaos.scale import scaled
from tests.fuzz.fuzz_edge import search
from tests.fuzz.harness import CORPUS, NAMES, SECONDS, corpus, load, mutations, timed

MUTATIONS = 300
MOST = scaled(inf, SECONDS)
INPUTS = [pytest.param(name, data, id=f"{name}-{file}") for name in NAMES for file, data in corpus(name)]


@pytest.mark.parametrize(("name", "data"), INPUTS)
def test_an_input_of_the_corpus_is_read_or_refused_as_it_should_be(name, data):
    timed(load(name), data, MOST)


@pytest.mark.parametrize("name", NAMES)
def test_so_are_mutations_of_it(name):
    run = load(name)
    for data in mutations([data for _, data in corpus(name)], MUTATIONS, seed=1):
        try:
            timed(run, data, MOST)
        except Exception as error:
            error.add_note(f"the input: {data!r}")
            raise


def test_our_server_and_h11s_hand_on_the_same_requests():
    assert search(2000, seed=7) == 0


def test_the_corpus_has_a_text_in_every_format():
    assert {data.partition(b"\n")[0].decode() for _, data in corpus("text")} == FORMATS


def test_every_harness_has_a_corpus_and_no_corpus_is_without_one():
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(NAMES)
    assert all(corpus(name) for name in NAMES)


def test_mutations_are_the_same_every_time():
    seeds = [b"one", b"another"]
    assert list(mutations(seeds, 50, seed=7)) == list(mutations(seeds, 50, seed=7))
    assert len(set(mutations(seeds, 50, seed=7))) > 40


def test_an_input_that_takes_too_long_is_a_failure():
    with pytest.raises(AssertionError, match="for 3 bytes"):
        timed(lambda data: None, b"abc", most=0.0)
