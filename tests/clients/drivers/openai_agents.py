"""The OpenAI Agents SDK on its chat model, and on that of the Responses API, which is its default."""

from typing import Any

from agents import (
    Agent,
    AgentOutputSchema,
    HostedMCPTool,
    ItemHelpers,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from agents.items import MessageOutputItem, ToolCallItem
from agents.models.fake_id import FAKE_RESPONSES_ID
from line import Asked, OwnTool, Person, play
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

OURS = HostedMCPTool(tool_config={"type": "mcp", "server_label": "callgate", "require_approval": "never"})
"""Names the server's tools, because an agent without tools sends an empty list, which means none."""


def agent(asked: Asked, **options: Any) -> Agent[None]:
    ai = AsyncOpenAI(
        base_url=asked["base_url"],
        api_key=asked["key"],
        default_headers=asked["headers"],
        max_retries=asked.get("retries", 0),
        timeout=asked.get("patience", 30),
    )
    kind: Any = OpenAIChatCompletionsModel
    if asked["flavour"] == "responses":
        kind = OpenAIResponsesModel
        options.setdefault("tools", [OURS])
    model = kind(asked["model"], ai)
    return Agent("tester", model=model, model_settings=ModelSettings(include_usage=True), **options)


def said(result: Any) -> dict[str, Any]:
    usage = result.context_wrapper.usage
    calls = [item for item in result.new_items if isinstance(item, ToolCallItem)]
    return {
        "text": _last_text(result),
        "usage": [usage.input_tokens, usage.output_tokens, usage.total_tokens],
        "seen": [item.raw_item.name for item in calls if getattr(item.raw_item, "type", "") != "mcp_call"],
    }


def _last_text(result: Any) -> str:
    """What the model said in its last response; a response may have several messages, and those of a chat have no ids."""
    if any(item.raw_item.id == FAKE_RESPONSES_ID for item in result.new_items if isinstance(item, MessageOutputItem)):
        return str(result.final_output)
    last = {item["id"] for item in result.raw_responses[-1].to_input_items() if item["type"] == "message"}
    items = [item for item in result.new_items if isinstance(item, MessageOutputItem) and item.raw_item.id in last]
    return "\n\n".join(map(ItemHelpers.text_message_output, items))


async def plain(asked: Asked) -> dict[str, Any]:
    return said(await Runner.run(agent(asked), asked["prompt"]))


async def streamed(asked: Asked) -> dict[str, Any]:
    result = Runner.run_streamed(agent(asked), asked["prompt"])
    pieces = [event.data.delta async for event in result.stream_events() if _is_text(event)]
    assert "".join(pieces) == result.final_output
    return {**said(result), "pieces": len(pieces)}


async def tools(asked: Asked) -> dict[str, Any]:
    own = OwnTool()
    asking = agent(asked, tools=[function_tool(own.lookup_word)])
    if not asked["stream"]:
        return {**said(await Runner.run(asking, asked["prompt"])), "ran": own.ran}
    result = Runner.run_streamed(asking, asked["prompt"])
    async for _ in result.stream_events():
        pass
    return {**said(result), "ran": own.ran}


async def structured(asked: Asked) -> dict[str, Any]:
    asking = agent(asked, output_type=AgentOutputSchema(Person))
    if not asked["stream"]:
        return {"parsed": (await Runner.run(asking, asked["prompt"])).final_output.model_dump()}
    result = Runner.run_streamed(asking, asked["prompt"])
    async for _ in result.stream_events():
        pass
    return {"parsed": result.final_output.model_dump()}


async def leave(asked: Asked) -> dict[str, Any]:
    result, text = Runner.run_streamed(agent(asked), asked["prompt"]), ""
    async for event in result.stream_events():
        if _is_text(event):
            text = text or event.data.delta
            result.cancel()
    return {"text": text}


async def give_up(asked: Asked) -> dict[str, Any]:
    await Runner.run(agent(asked), asked["prompt"])
    return {}


def _is_text(event: Any) -> bool:
    return event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)


scenarios = [plain, streamed, tools, structured, leave, give_up]
play({scenario.__name__: scenario for scenario in scenarios}, "openai-agents", "openai")
