"""Routes that are passed on: what a client is told that came to the wrong one."""

import openai
import pytest

from callgate.application import create_app
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.scripted_upstream import Upstream

pytestmark = pytest.mark.anyio

DEMO = {"litellm_params": {"model": "demo/demo"}, "lane": "auto"}


@pytest.mark.parametrize("entry", [DEMO, None], ids=["a model without such an API", "a provider without the route"])
async def test_who_speaks_the_responses_api_is_shown_the_way_to_chats(
    upstream: Upstream, entry: dict[str, object] | None
):
    """Several libraries speak it unless told otherwise, so this is the first that their users see of Callgate."""
    config = make_config(upstream.url, entry=entry)
    async with serve(create_app(config)) as url, openai_client(url) as client:
        with pytest.raises(openai.NotFoundError, match=r"/v1/chat/completions") as caught:
            await client.responses.create(model="m", input="hello")
        assert caught.value.code == "unsupported_route"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.embeddings.create(model="m", input="hello")
        assert "/v1/chat/completions" not in str(caught.value)
