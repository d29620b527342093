import pytest

from callgate.http.client import HttpClient
from callgate.models import litellm_model


@pytest.fixture
async def client():
    made = HttpClient()
    yield made
    await made.close()
    await litellm_model.close()  # it has a client of its own, for one event loop


@pytest.fixture
async def litellm_is_closed():
    yield
    await litellm_model.close()
