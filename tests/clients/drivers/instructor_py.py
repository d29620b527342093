"""instructor, whose one business is structured output: by a forced tool call, whole and partial."""

from typing import Any

import instructor
from line import Asked, Person, counted, play
from openai import AsyncOpenAI


def client(asked: Asked) -> instructor.AsyncInstructor:
    ai = AsyncOpenAI(
        base_url=asked["base_url"],
        api_key=asked["key"],
        default_headers=asked["headers"],
        max_retries=asked.get("retries", 0),
        timeout=asked.get("patience", 30),
    )
    return instructor.from_openai(ai, mode=instructor.Mode.TOOLS)


def question(asked: Asked) -> dict[str, Any]:
    messages = [{"role": "user", "content": asked["prompt"]}]
    return {"model": asked["model"], "messages": messages, "max_retries": 0}


async def structured(asked: Asked) -> dict[str, Any]:
    if not asked["stream"]:
        person, answer = await client(asked).create_with_completion(response_model=Person, **question(asked))
        return {"parsed": person.model_dump(), "usage": counted(answer.usage)}
    parts = [part async for part in client(asked).create_partial(response_model=Person, **question(asked))]
    return {"parsed": parts[-1].model_dump(), "pieces": len(parts)}


async def plain(asked: Asked) -> dict[str, Any]:
    """Without a type it hands the client's own answer through."""
    answer = await client(asked).create(response_model=None, **question(asked))
    [choice] = answer.choices
    return {"text": choice.message.content, "finish": choice.finish_reason, "usage": counted(answer.usage)}


async def leave(asked: Asked) -> dict[str, Any]:
    stream = client(asked).create_partial(response_model=Person, **question(asked))
    async for part in stream:
        if part.name:
            break
    await stream.aclose()
    return {"parsed": part.model_dump()}


async def give_up(asked: Asked) -> dict[str, Any]:
    await client(asked).create(response_model=Person, **question(asked))
    return {}


scenarios = [structured, plain, leave, give_up]
play({scenario.__name__: scenario for scenario in scenarios}, "instructor", "openai")
