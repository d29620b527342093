"""Pydantic AI's agent on its models of chats (`openai-chat:`), of the Responses API and of Anthropic's; what it is bare is an agent loop of its own."""

from typing import Any

from anthropic import AsyncAnthropic
from line import Asked, OwnTool, Person, play
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelResponse
from pydantic_ai.messages import TextPart, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
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
    kind = OpenAIResponsesModel if asked["flavour"] == "responses" else OpenAIChatModel
    return Agent(kind(asked["model"], provider=OpenAIProvider(openai_client=ai)), **options)


def said(messages: list[Any], usage: RunUsage) -> dict[str, Any]:
    answers = [message for message in messages if isinstance(message, ModelResponse)]
    texts = [part.content for part in answers[-1].parts if isinstance(part, TextPart)]
    calls = [part.tool_name for answer in answers for part in answer.parts if isinstance(part, ToolCallPart)]
    return {
        "text": "\n\n".join(text.strip("\n") for text in texts),
        "finish": answers[-1].finish_reason,
        "usage": [usage.input_tokens, usage.output_tokens, usage.total_tokens],
        "seen": calls,
    }


async def plain(asked: Asked) -> dict[str, Any]:
    result = await agent(asked).run(asked["prompt"])
    return said(result.all_messages(), result.usage)


async def streamed(asked: Asked) -> dict[str, Any]:
    async with agent(asked).run_stream(asked["prompt"]) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return {"pieces": len(pieces), **said(result.all_messages(), result.usage), "text": "".join(pieces)}


async def tools(asked: Asked) -> dict[str, Any]:
    own = OwnTool()
    asking = agent(asked, tools=[own.lookup_word])
    if not asked["stream"]:
        result = await asking.run(asked["prompt"])
        return {"ran": own.ran, **said(result.all_messages(), result.usage)}
    async with asking.run_stream(asked["prompt"]) as streaming:
        await streaming.get_output()
        return {"ran": own.ran, **said(streaming.all_messages(), streaming.usage)}


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
