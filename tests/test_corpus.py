"""Every case of the corpus is one test. `python -m tests.corpus` runs the same cases, and any others, by itself."""

import pytest

from tests.corpus.judge import Case, cases, verdict


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in cases()])
def test_the_product_makes_of_it_what_the_rules_say(case: Case):
    assert verdict(case) == []
