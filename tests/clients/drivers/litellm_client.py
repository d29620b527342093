"""litellm as a client, as those use it who reach every provider through it."""

import json
from typing import Any

import litellm
from line import LOOKUP, Asked, OwnTool, Person, counted, play


def question(asked: Asked, **more: Any) -> dict[str, Any]:
    return {
        "model": f"openai/{asked['model']}",
        "api_base": asked["base_url"],
        "api_key": asked["key"],
        "messages": [{"role": "user", "content": asked["prompt"]}],
        "extra_headers": asked["headers"],
        "max_retries": asked.get("retries", 0),
        **more,
    }


def said(answer: Any) -> dict[str, Any]:
    [choice] = answer.choices
    return {
        "text": choice.message.content or "",
        "finish": choice.finish_reason,
        "usage": counted(answer.usage),
        "seen": [call.function.name for call in choice.message.tool_calls or []],
    }


async def plain(asked: Asked) -> dict[str, Any]:
    return said(await litellm.acompletion(**question(asked)))


async def streamed(asked: Asked) -> dict[str, Any]:
    chunks = await _chunks(question(asked))
    pieces = sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks)
    return {**said(litellm.stream_chunk_builder(chunks)), "pieces": pieces}


async def tools(asked: Asked) -> dict[str, Any]:
    own, seen, fields = OwnTool(), [], question(asked, tools=[LOOKUP])
    while True:
        if asked["stream"]:
            answer = litellm.stream_chunk_builder(await _chunks(fields))
        else:
            answer = await litellm.acompletion(**fields)
        message = answer.choices[0].message
        seen += [call.function.name for call in message.tool_calls or []]
        if not message.tool_calls:
            return {**said(answer), "seen": seen, "ran": own.ran}
        fields["messages"].append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = getattr(own, call.function.name)(**json.loads(call.function.arguments))
            fields["messages"].append({"role": "tool", "tool_call_id": call.id, "content": result})


async def models(asked: Asked) -> dict[str, Any]:
    provider = {"custom_llm_provider": "openai", "api_base": asked["base_url"], "api_key": asked["key"]}
    names = litellm.get_valid_models(check_provider_endpoint=True, **provider)
    return {"models": [name.removeprefix("openai/") for name in names]}


async def structured(asked: Asked) -> dict[str, Any]:
    fields = question(asked, response_format=Person)
    if asked["stream"]:
        answer = litellm.stream_chunk_builder(await _chunks(fields))
    else:
        answer = await litellm.acompletion(**fields)
    return {"parsed": Person.model_validate_json(answer.choices[0].message.content).model_dump()}


async def leave(asked: Asked) -> dict[str, Any]:
    stream = await litellm.acompletion(**question(asked), stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.aclose()
    return {"text": chunk.choices[0].delta.content}


async def give_up(asked: Asked) -> dict[str, Any]:
    await litellm.acompletion(**question(asked), timeout=asked["patience"])
    return {}


async def _chunks(fields: dict[str, Any]) -> list[Any]:
    stream = await litellm.acompletion(**fields, stream=True, stream_options={"include_usage": True})
    return [chunk async for chunk in stream]


scenarios = [plain, streamed, tools, models, structured, leave, give_up]
play({scenario.__name__: scenario for scenario in scenarios}, "litellm", "openai")
