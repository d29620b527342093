"""Routes that are passed on to a provider, and the error for a request to the wrong one."""

import openai
import pytest

from callgate.application import create_app
from tests.harness.clients import openai_client
from tests.harness.configs import make_config
from tests.harness.server import serve

pytestmark = pytest.mark.anyio


async def test_a_model_without_such_an_api_answers_responses_all_the_same() -> None:
    config = make_config("http://127.0.0.1:1", entry={"litellm_params": {"model": "demo/demo"}, "lane": "auto"})
    async with serve(create_app(config)) as url, openai_client(url) as client:
        response = await client.responses.create(model="m", input="hello")
        assert response.output_text
        with pytest.raises(openai.NotFoundError) as caught:
            await client.embeddings.create(model="m", input="hello")
        assert caught.value.code == "unsupported_route"
