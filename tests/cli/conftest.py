"""Commands that are run in the process of the tests set up its logging for themselves."""

import pytest


@pytest.fixture(autouse=True)
def _restored(logging_as_it_was: None) -> None: ...
