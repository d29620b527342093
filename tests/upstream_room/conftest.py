import pytest

from app.outbound.lean_client import LeanClient
from app.upstream import litellm_model


@pytest.fixture
async def client():
    made = LeanClient()
    yield made
    await made.close()


@pytest.fixture
async def litellm_is_closed():
    yield
    await litellm_model.close()
