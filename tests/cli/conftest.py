"""Commands that are run in the process of the tests set up its logging for themselves; the next test wants its own."""

from collections.abc import Iterator

import pytest
import structlog

from callgate.telemetry import logs


@pytest.fixture(scope="session", autouse=True)
def _forking(forking: None) -> None:
    """Before the first test, whose child it would be."""


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    config, quick, redactor = structlog.get_config(), logs._quick, logs._redactor
    yield
    structlog.configure(**config)
    logs._quick, logs._redactor = quick, redactor
