"""The tools of providers in the Agents SDK: two turns of a chat with each, whole and streamed; a line of JSON for each chat."""

import asyncio
import json
import os
import sys
from typing import Any

from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    ImageGenerationTool,
    OpenAIResponsesModel,
    Runner,
    WebSearchTool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

CASES: dict[str, Any] = {
    "search": WebSearchTool(),
    "code": CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}}),
    "files": FileSearchTool(vector_store_ids=["vs"], include_search_results=True),
    "image": ImageGenerationTool(tool_config={"type": "image_generation"}),
}


async def turn(agent: Any, asked: Any, mode: str) -> Any:
    if mode == "whole":
        return await Runner.run(agent, asked)
    result = Runner.run_streamed(agent, asked)
    async for _ in result.stream_events():
        pass
    return result


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{os.environ['CALLGATE_URL']}/v1", api_key="k", max_retries=0)
    for name, tool in CASES.items():
        agent = Agent(name="a", model=OpenAIResponsesModel(name, client), tools=[tool])
        for mode in ("whole", "streamed"):
            try:
                first = await turn(agent, "go", mode)
                results = sum(type(item).__name__ == "ToolCallItem" for item in first.new_items)
                history = [*first.to_input_list(), {"role": "user", "content": "and now?"}]
                again = await turn(agent, history, mode)
                said = {"texts": [first.final_output, again.final_output], "results": results}
            except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
                said = {"error": repr(error)}
            sys.stdout.write(json.dumps({"name": f"{name}, {mode}", **said}) + "\n")


asyncio.run(main())
