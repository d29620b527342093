"""LangChain's `ChatOpenAI` and `ChatAnthropic`, with the tool loop its documentation shows (its agents live in other packages)."""

from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from line import Asked, OwnTool, Person, play

FINISH = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}


def model(asked: Asked, **options: Any) -> ChatOpenAI | ChatAnthropic:
    options = {"default_headers": asked["headers"], "max_retries": asked.get("retries", 0), **options}
    if asked["flavour"] == "anthropic":
        base_url = asked["base_url"].removesuffix("/v1")
        return ChatAnthropic(base_url=base_url, api_key=asked["key"], model=asked["model"], max_tokens=500, **options)
    if asked["flavour"] == "responses":
        options["use_responses_api"] = True
    return ChatOpenAI(
        base_url=asked["base_url"], api_key=asked["key"], model=asked["model"], stream_usage=True, **options
    )


def said(message: AIMessage) -> dict[str, Any]:
    usage = message.usage_metadata
    facts = message.response_metadata
    return {
        "text": _text(message),
        "finish": facts.get("finish_reason") or FINISH.get(facts.get("stop_reason")),
        "usage": [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]] if usage else None,
        "seen": [call["name"] for call in message.tool_calls],
    }


def _text(message: AIMessage) -> str:
    """A response may hold several messages, a chat one."""
    if isinstance(message.content, str):
        return message.text
    texts: dict[str, str] = {}
    for place, block in enumerate(message.content):
        if block["type"] == "text":
            key = block.get("id") or f"at {place}"
            texts[key] = texts.get(key, "") + block["text"]
    return "\n\n".join(texts.values())


async def plain(asked: Asked) -> dict[str, Any]:
    return said(await model(asked).ainvoke(asked["prompt"]))


async def streamed(asked: Asked) -> dict[str, Any]:
    pieces = [piece async for piece in model(asked).astream(asked["prompt"])]
    return {**said(_whole(pieces)), "pieces": sum(bool(piece.text) for piece in pieces)}


async def tools(asked: Asked) -> dict[str, Any]:
    own, seen = OwnTool(), []
    lookup = tool(own.lookup_word)
    bound = model(asked).bind_tools([lookup])
    messages: list[BaseMessage] = [HumanMessage(asked["prompt"])]
    while True:
        if asked["stream"]:
            answer = _whole([piece async for piece in bound.astream(messages)])
        else:
            answer = await bound.ainvoke(messages)
        seen += [call["name"] for call in answer.tool_calls]
        if not answer.tool_calls:
            return {**said(answer), "seen": seen, "ran": own.ran}
        messages.append(answer)
        messages += [await lookup.ainvoke(call) for call in answer.tool_calls]


async def structured(asked: Asked) -> dict[str, Any]:
    asking = model(asked).with_structured_output(Person)
    if asked["stream"]:
        *_, person = [part async for part in asking.astream(asked["prompt"])]
    else:
        person = await asking.ainvoke(asked["prompt"])
    return {"parsed": person.model_dump()}


async def leave(asked: Asked) -> dict[str, Any]:
    stream = model(asked).astream(asked["prompt"])
    async for piece in stream:
        if piece.text:
            break
    await stream.aclose()
    return {"text": piece.text}


async def give_up(asked: Asked) -> dict[str, Any]:
    await model(asked, timeout=asked["patience"]).ainvoke(asked["prompt"])
    return {}


def _whole(pieces: list[AIMessageChunk]) -> AIMessageChunk:
    first, *rest = pieces
    for piece in rest:
        first += piece
    return first


scenarios = [plain, streamed, tools, structured, leave, give_up]
play(
    {scenario.__name__: scenario for scenario in scenarios},
    "langchain-openai",
    "langchain-anthropic",
    "openai",
    "anthropic",
)
