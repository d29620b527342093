import pytest

from tests.harness.tls import self_signed


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that nobody but its holder has signed."""
    return self_signed(tmp_path_factory.mktemp("tls"))
