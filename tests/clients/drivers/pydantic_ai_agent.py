"""Pydantic AI's agent on its chat model (`openai-chat:`) and on its Anthropic model; what it is bare is an agent loop of its own."""

from typing import Any

from anthropic import AsyncAnthropic
from line import Asked, OwnTool, Person, play
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelResponse
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RunUsage


def agent(asked: Asked, **options: Any) -> Agent[None, Any]:
    if asked["flavour"] == "anthropic":
        claude = AsyncAnthropic(
            base_url=asked["base_url"].removesuffix("/v1"),
            api_key=asked["key"],
            default_headers=asked["headers"],
            max_retries=asked.get("retries", 0),
            timeout=asked.get("patience", 30),
        )
        return Agent(AnthropicModel(asked["model"], provider=AnthropicProvider(anthropic_client=claude)), **options)
    ai = AsyncOpenAI(
        base_url=asked["base_url"],
        api_key=asked["key"],
        default_headers=asked["headers"],
        max_retries=asked.get("retries", 0),
        timeout=asked.get("patience", 30),
    )
    return Agent(OpenAIChatModel(asked["model"], provider=OpenAIProvider(openai_client=ai)), **options)


def said(messages: list[Any], usage: RunUsage) -> dict[str, Any]:
    answers = [message for message in messages if isinstance(message, ModelResponse)]
    calls = [part.tool_name for answer in answers for part in answer.parts if isinstance(part, ToolCallPart)]
    return {
        "finish": answers[-1].finish_reason,
        "usage": [usage.input_tokens, usage.output_tokens, usage.total_tokens],
        "seen": calls,
    }


async def plain(asked: Asked) -> dict[str, Any]:
    result = await agent(asked).run(asked["prompt"])
    return {"text": result.output, **said(result.all_messages(), result.usage)}


async def streamed(asked: Asked) -> dict[str, Any]:
    async with agent(asked).run_stream(asked["prompt"]) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return {"text": "".join(pieces), "pieces": len(pieces), **said(result.all_messages(), result.usage)}


async def tools(asked: Asked) -> dict[str, Any]:
    own = OwnTool()
    asking = agent(asked, tools=[own.lookup_word])
    if not asked["stream"]:
        result = await asking.run(asked["prompt"])
        return {"text": result.output, "ran": own.ran, **said(result.all_messages(), result.usage)}
    async with asking.run_stream(asked["prompt"]) as streaming:
        text = await streaming.get_output()
        return {"text": text, "ran": own.ran, **said(streaming.all_messages(), streaming.usage)}


async def structured(asked: Asked) -> dict[str, Any]:
    """By its default, an output tool that has to be called."""
    asking = agent(asked, output_type=Person)
    if not asked["stream"]:
        return {"parsed": (await asking.run(asked["prompt"])).output.model_dump()}
    async with asking.run_stream(asked["prompt"]) as streaming:
        return {"parsed": (await streaming.get_output()).model_dump()}


async def leave(asked: Asked) -> dict[str, Any]:
    async with agent(asked).run_stream(asked["prompt"]) as result:
        async for text in result.stream_text(debounce_by=None):
            return {"text": text}
    return {}


async def give_up(asked: Asked) -> dict[str, Any]:
    await agent(asked).run(asked["prompt"])
    return {}


scenarios = [plain, streamed, tools, structured, leave, give_up]
play({scenario.__name__: scenario for scenario in scenarios}, "pydantic-ai-slim", "openai", "anthropic")
