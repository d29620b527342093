"""The official Python client on the Responses API, with its stream helper and its parser, and a loop that sends back all it was
shown."""

import json
from typing import Any

from line import LOOKUP, Asked, OwnTool, Person, play
from openai import AsyncOpenAI

TOOL = {"type": "function", **LOOKUP["function"]}


class StreamFailed(Exception):
    """The client hands on an error inside a stream as one more event."""

    def __init__(self, event: Any) -> None:
        super().__init__(event.message)
        self.code, self.param = event.code, event.param


def client(asked: Asked) -> AsyncOpenAI:
    options = {"max_retries": asked.get("retries", 0), "default_headers": asked["headers"]}
    return AsyncOpenAI(base_url=asked["base_url"], api_key=asked["key"], **options)


def said(response: Any) -> dict[str, Any]:
    usage = response.usage
    return {
        "text": "\n\n".join(part.text for item in response.output if item.type == "message" for part in item.content),
        "usage": [usage.input_tokens, usage.output_tokens, usage.total_tokens],
        "seen": [item.name for item in response.output if item.type == "function_call"],
    }


async def plain(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        return said(await ai.responses.create(model=asked["model"], input=asked["prompt"]))


async def streamed(asked: Asked) -> dict[str, Any]:
    pieces = 0
    async with (
        client(asked) as ai,
        ai.responses.stream(model=asked["model"], input=asked["prompt"]) as stream,
    ):
        async for event in stream:
            pieces += event.type == "response.output_text.delta"
            if event.type == "error":
                raise StreamFailed(event)
        return {**said(await stream.get_final_response()), "pieces": pieces}


async def tools(asked: Asked) -> dict[str, Any]:
    own, seen = OwnTool(), []
    items: list[Any] = [{"role": "user", "content": asked["prompt"]}]
    async with client(asked) as ai:
        while True:
            fields = {"model": asked["model"], "input": items, "tools": [TOOL]}
            if asked["stream"]:
                async with ai.responses.stream(**fields) as stream:
                    response = await stream.get_final_response()
            else:
                response = await ai.responses.create(**fields)
            calls = [item for item in response.output if item.type == "function_call"]
            seen += [call.name for call in calls]
            if not calls:
                return {**said(response), "seen": seen, "ran": own.ran}
            items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            for call in calls:
                result = getattr(own, call.name)(**json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


async def models(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        return {"models": [model.id async for model in ai.models.list()]}


async def structured(asked: Asked) -> dict[str, Any]:
    fields = {"model": asked["model"], "input": asked["prompt"], "text_format": Person}
    async with client(asked) as ai:
        if asked["stream"]:
            async with ai.responses.stream(**fields) as stream:
                response = await stream.get_final_response()
        else:
            response = await ai.responses.parse(**fields)
    return {"parsed": response.output_parsed.model_dump()}


async def leave(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        stream = await ai.responses.create(model=asked["model"], input=asked["prompt"], stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                await stream.close()
                return {"text": event.delta}
    return {}


async def give_up(asked: Asked) -> dict[str, Any]:
    async with client(asked) as ai:
        await ai.with_options(timeout=asked["patience"]).responses.create(model=asked["model"], input=asked["prompt"])
    return {}


scenarios = [plain, streamed, tools, models, structured, leave, give_up]
play({scenario.__name__: scenario for scenario in scenarios}, "openai")
