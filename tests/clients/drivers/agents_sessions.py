"""The OpenAI Agents SDK with the sessions that a server keeps: a conversation of it, and one of its own that it has compacted.

python agents_sessions.py URL   prints one line of JSON: what each way came to
"""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    HostedMCPTool,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import OpenAIResponsesCompactionSession
from openai import AsyncOpenAI

TURNS = 4
ENTRY = {"type": "mcp", "server_label": "callgate", "require_approval": "never"}


@function_tool
def look(q: str) -> str:
    """Looks something up."""
    return "seen"


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)


def agent(client: AsyncOpenAI) -> Agent[None]:
    tool = HostedMCPTool(tool_config=ENTRY)
    return Agent("tester", model=OpenAIResponsesModel("gpt-5", client), tools=[look, tool])


async def conversation(url: str) -> Any:
    client = client_of(url)
    session = OpenAIConversationsSession(openai_client=client)
    said = [(await Runner.run(agent(client), f"turn {turn}", session=session)).final_output for turn in range(TURNS)]
    items = await session.get_items()
    last = await session.pop_item()
    again = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=client)
    left = await again.get_items()
    await again.clear_session()
    return {"said": said, "items": len(items), "left": len(left), "last": last["type"] if last else None}


async def by_its_id(url: str) -> Any:
    client = client_of(url)
    made = await client.conversations.create()
    said = []
    for turn in range(TURNS):
        result = Runner.run_streamed(agent(client), f"turn {turn}", conversation_id=made.id)
        async for _ in result.stream_events():
            pass
        said.append(result.final_output)
    kept = [item.type async for item in client.conversations.items.list(made.id, order="asc")]
    return {"said": said, "items": len(kept)}


async def compacted(url: str) -> Any:
    client = client_of(url)
    own = SQLiteSession("one")
    session = OpenAIResponsesCompactionSession("one", own, client=client, model="gpt-5")
    said = [(await Runner.run(agent(client), f"turn {turn}", session=session)).final_output for turn in range(TURNS)]
    kinds = [item.get("type", "message") for item in await own.get_items()]
    return {"said": said, "compactions": kinds.count("compaction")}


async def main(url: str) -> None:
    set_tracing_disabled(disabled=True)
    said: dict[str, Any] = {}
    for way in (conversation, by_its_id, compacted):
        said[way.__name__] = await way(url)
    sys.stdout.write(json.dumps(said) + "\n")


asyncio.run(main(sys.argv[1]))
