"""The tools of providers in Pydantic AI: two turns of a chat with each; a line of JSON for each chat."""

import json
import os
import sys
from typing import Any

from pydantic_ai import Agent, CodeExecutionTool, WebSearchTool
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL = os.environ["CALLGATE_URL"]
TOOLS: dict[str, Any] = {"search": WebSearchTool(), "code": CodeExecutionTool()}


def models(name: str) -> dict[str, Any]:
    return {
        "openai": OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="k")),
        "anthropic": AnthropicModel(name, provider=AnthropicProvider(base_url=URL, api_key="k")),
    }


for name, tool in TOOLS.items():
    for api, model in models(name).items():
        said: dict[str, Any]
        try:
            agent = Agent(model, capabilities=[NativeTool(tool)])
            first = agent.run_sync("go")
            parts = [type(part).__name__ for message in first.all_messages() for part in message.parts]
            again = agent.run_sync("and now?", message_history=first.all_messages())
            said = {"texts": [first.output, again.output], "results": parts.count("NativeToolReturnPart")}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
            said = {"error": repr(error)}
        sys.stdout.write(json.dumps({"name": f"{api} {name}", **said}) + "\n")
