"""The official Python client, with its stream helper and its parser. It has no tool runner for chats: the loop is ours."""

import json
from typing import Any

from line import LOOKUP, Asked, OwnTool, Person, counted, play
from openai import AsyncOpenAI


def client(asked: Asked) -> AsyncOpenAI:
    options = {"max_retries": asked.get("retries", 0), "default_headers": asked["headers"]}
    return AsyncOpenAI(base_url=asked["base_url"], api_key=asked["key"], **options)


def question(asked: Asked) -> dict[str, Any]:
    return {"model": asked["model"], "messages": [{"role": "user", "content": asked["prompt"]}]}


async def plain(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        answer = await ai.chat.completions.create(**question(asked))
    [choice] = answer.choices
    seen = [call.function.name for call in choice.message.tool_calls or []]
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "usage": counted(answer.usage),
        "seen": seen,
    }


async def streamed(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        return await _streamed(ai, asked, question(asked))


async def _streamed(ai: AsyncOpenAI, asked: Asked, fields: dict[str, Any]) -> dict[str, Any]:
    """Through the helper, which puts the answer together and checks the chunks on the way."""
    pieces = 0
    async with ai.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        async for event in stream:
            pieces += event.type == "content.delta"
        answer = await stream.get_final_completion()
    [choice] = answer.choices
    parsed = choice.message.parsed
    return {
        "text": choice.message.content or "",
        "finish": choice.finish_reason,
        "usage": counted(answer.usage),
        "pieces": pieces,
        "seen": [call.function.name for call in choice.message.tool_calls or []],
        "parsed": parsed.model_dump() if parsed else None,
    }


async def tools(asked: Asked) -> dict[str, Any]:
    """The loop that the client's documentation shows: run what was called, send the message back with the results."""
    own, seen, fields = OwnTool(), [], {**question(asked), "tools": [LOOKUP]}
    async with client(asked) as ai:
        while True:
            message, finish, usage = await _turn(ai, fields, stream=asked["stream"])
            calls = message.tool_calls or []
            seen += [call.function.name for call in calls]
            if not calls:
                return {"text": message.content, "finish": finish, "usage": usage, "seen": seen, "ran": own.ran}
            fields["messages"].append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            for call in calls:
                result = getattr(own, call.function.name)(**json.loads(call.function.arguments))
                fields["messages"].append({"role": "tool", "tool_call_id": call.id, "content": result})


async def _turn(ai: AsyncOpenAI, fields: dict[str, Any], *, stream: bool) -> tuple[Any, str, list[int] | None]:
    if stream:
        async with ai.chat.completions.stream(**fields, stream_options={"include_usage": True}) as streaming:
            answer = await streaming.get_final_completion()
    else:
        answer = await ai.chat.completions.create(**fields)
    return answer.choices[0].message, answer.choices[0].finish_reason, counted(answer.usage)


async def models(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        listed = [model.id async for model in ai.models.list()]
        one = await ai.models.retrieve(listed[0])
        assert one.id == listed[0]
        return {"models": listed}


async def structured(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        if asked["stream"]:
            return await _streamed(ai, asked, {**question(asked), "response_format": Person})
        answer = await ai.chat.completions.parse(**question(asked), response_format=Person)
    parsed = answer.choices[0].message.parsed
    return {"parsed": parsed.model_dump() if parsed else None}


async def leave(asked: Asked) -> dict[str, Any]:
    """Closes the stream as soon as something was said."""
    async with client(asked) as ai:
        stream = await ai.chat.completions.create(**question(asked), stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await stream.close()
        return {"text": chunk.choices[0].delta.content}


async def give_up(asked: Asked) -> dict[str, Any]:
    """Waits for a whole answer no longer than its timeout."""
    async with client(asked) as ai:
        await ai.with_options(timeout=asked["patience"]).chat.completions.create(**question(asked))
    return {}


scenarios = [plain, streamed, tools, models, structured, leave, give_up]
play({scenario.__name__: scenario for scenario in scenarios}, "openai")
