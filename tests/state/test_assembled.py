"""From the config to a store, or to a word for the operator that repeats no password."""

from typing import Any

import pytest
from pydantic import ValidationError

from callgate.config.entry_errors import BadEntry
from callgate.state.building import store_of
from callgate.state.cluster.redis import RedisStore
from callgate.state.local.memory import MemoryStore
from tests.harness.configs import make_config
from tests.harness.needs import needs

pytestmark = pytest.mark.anyio


def config(**store: Any) -> Any:
    return make_config("http://127.0.0.1:1", store=store)


async def test_without_an_address_everything_is_kept_in_memory() -> None:
    assert isinstance(store_of(config()), MemoryStore)


@needs("module:redis")
@pytest.mark.parametrize("url", ["redis://127.0.0.1:6379/0", "rediss://:pw@cache:6380", "unix:///run/redis.sock"])
async def test_an_address_is_a_redis_that_is_asked_when_it_is_needed(url: str) -> None:
    store = store_of(config(redis_url=url))
    assert isinstance(store, RedisStore)
    await store.close()


@pytest.mark.parametrize("url", ["http://:hunter2@cache", "redis://", "cache:6379", ""])
async def test_another_address_is_refused_by_the_config(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(redis_url=url)
    assert "redis://host:6379/0" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@needs("module:redis")
async def test_an_invalid_port_is_reported_without_the_password() -> None:
    with pytest.raises(BadEntry) as caught:
        store_of(config(redis_url="redis://:hunter2@cache:port"))
    assert caught.value.path == ("store", "redis_url")
    assert "hunter2" not in str(caught.value)
