"""Anthropic's Python client, with its stream helper, its parser and its tool runner, which asks for a thread at first."""

import json
from typing import Any

from anthropic import AsyncAnthropic, beta_async_tool
from line import Asked, OwnTool, Person, play

FINISH = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}


def client(asked: Asked) -> AsyncAnthropic:
    options = {"max_retries": asked.get("retries", 0), "default_headers": asked["headers"]}
    return AsyncAnthropic(base_url=asked["base_url"].removesuffix("/v1"), api_key=asked["key"], **options)


def question(asked: Asked) -> dict[str, Any]:
    return {"model": asked["model"], "max_tokens": 500, "messages": [{"role": "user", "content": asked["prompt"]}]}


def said(message: Any) -> dict[str, Any]:
    usage = message.usage
    prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return {
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "finish": FINISH[message.stop_reason],
        "usage": [prompt, usage.output_tokens, prompt + usage.output_tokens],
        "seen": [block.name for block in message.content if block.type == "tool_use"],
    }


async def plain(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        return said(await ai.messages.create(**question(asked)))


async def streamed(asked: Asked) -> dict[str, Any]:
    pieces = 0
    async with client(asked) as ai, ai.messages.stream(**question(asked)) as stream:
        async for _ in stream.text_stream:
            pieces += 1
        return {**said(await stream.get_final_message()), "pieces": pieces}


async def tools(asked: Asked) -> dict[str, Any]:
    own, seen, last = OwnTool(), [], None

    @beta_async_tool
    async def lookup_word(word: str) -> str:
        """What a word means."""
        return own.lookup_word(word)

    async with client(asked) as ai:
        runner = ai.beta.messages.tool_runner(**question(asked), tools=[lookup_word], stream=asked["stream"])
        async for turn in runner:
            last = await turn.get_final_message() if asked["stream"] else turn
            seen += said(last)["seen"]
    return {**said(last), "seen": seen, "ran": own.ran}


async def models(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        listed = [model.id async for model in ai.models.list(limit=2)]
        one = await ai.models.retrieve(listed[0])
        assert one.id == listed[0]
        return {"models": listed}


async def structured(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        if asked["stream"]:
            async with ai.messages.stream(**question(asked), output_format=Person) as stream:
                answer = await stream.get_final_message()
            text = said(answer)["text"]
            return {"parsed": Person.model_validate(json.loads(text)).model_dump()}
        answer = await ai.messages.parse(**question(asked), output_format=Person)
    return {"parsed": answer.parsed_output.model_dump()}


async def leave(asked: Asked) -> dict[str, Any]:
    """Closes the stream as soon as something was said."""
    async with client(asked) as ai, ai.messages.stream(**question(asked)) as stream:
        async for text in stream.text_stream:
            return {"text": text}
    return {}


async def give_up(asked: Asked) -> dict[str, Any]:
    """Waits for a whole answer no longer than its timeout."""
    async with client(asked) as ai:
        await ai.with_options(timeout=asked["patience"]).messages.create(**question(asked))
    return {}


scenarios = [plain, streamed, tools, models, structured, leave, give_up]
play({scenario.__name__: scenario for scenario in scenarios}, "anthropic")
