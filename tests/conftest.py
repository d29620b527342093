"""What every test may ask for."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asyncio alone: it is what the server runs on, and what litellm and aiohttp are written for."""
    return "asyncio"
