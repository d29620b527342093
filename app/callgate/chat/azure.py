"""Chat Completions under Azure OpenAI's URLs, for its clients: the path names the model, `api-version` is ignored, and the key
comes as `api-key`."""

import re

import msgspec

from callgate.api.middleware import RequestContext
from callgate.api.strict_json import split
from callgate.chat.face import ChatExchange, ChatFace
from callgate.config.schema.whole import Config
from callgate.untrusted.doors import Opened, written_here

AZURE_PATH = "/openai/deployments/{model:path}/chat/completions"
_MODEL = re.compile(r"/openai/deployments/(.+)/chat/completions/?")


class AzureChatFace(ChatFace):
    """`POST /openai/deployments/{model}/chat/completions`. As on Azure, a model in the body is ignored."""

    async def read(self, body: Opened, context: RequestContext, config: Config) -> ChatExchange:
        fields = {**split(body, config.limits.json_depth), "model": model_in(context.path)}
        return await super().read(written_here(msgspec.json.encode(fields)), context, config)


def model_in(path: str) -> str:
    """Return the model that a path names."""
    named = _MODEL.fullmatch(path)
    assert named is not None, "no other path leads here"
    return named[1]
