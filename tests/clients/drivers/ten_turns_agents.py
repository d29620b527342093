"""The OpenAI Agents SDK in one conversation of ten turns: with a session, by the id of the response before, with the tools of the house
as a hosted tool whose calls it approves, and with a tool of its own beside them.

python ten_turns_agents.py URL TURNS   prints one line of JSON: what each way said, and how often its own tool ran
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from agents import (
    Agent,
    HostedMCPTool,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

HOSTED = {"type": "mcp", "server_label": "callgate", "require_approval": "never"}
APPROVED = {**HOSTED, "require_approval": "always"}
ran = 0


@function_tool
def look(q: str) -> str:
    """Looks something up."""
    global ran  # noqa: PLW0603 - the SDK calls a plain function
    ran += 1
    return "seen"


@cache
def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)


def agent(url: str, *tools: Any, chats: bool = False) -> Agent[None]:
    client = client_of(url)
    model = OpenAIChatCompletionsModel("m", client) if chats else OpenAIResponsesModel("m", client)
    return Agent("tester", instructions="Work.", model=model, tools=[look, *tools])


async def with_session(url: str, turns: int) -> list[Any]:
    session = SQLiteSession("one")
    said = []
    for turn in range(1, turns + 1):
        result = await Runner.run(agent(url, HostedMCPTool(tool_config=HOSTED)), f"turn {turn}", session=session)
        said.append(result.final_output)
    return said


async def streamed_with_session(url: str, turns: int) -> list[Any]:
    session = SQLiteSession("two")
    said = []
    for turn in range(1, turns + 1):
        result = Runner.run_streamed(agent(url), f"turn {turn}", session=session)
        async for _ in result.stream_events():
            pass
        said.append(result.final_output)
    return said


async def by_response_id(url: str, turns: int) -> list[Any]:
    said = []
    previous = None
    for turn in range(1, turns + 1):
        result = await Runner.run(agent(url), f"turn {turn}", previous_response_id=previous)
        previous = result.last_response_id
        said.append(result.final_output)
    return said


async def approved(url: str, turns: int) -> list[Any]:
    def approve(request: Any) -> Any:
        return {"approve": request.data.name == "add"}

    tool = HostedMCPTool(tool_config=APPROVED, on_approval_request=approve)
    history: list[Any] = []
    said = []
    for turn in range(1, turns + 1):
        result = await Runner.run(agent(url, tool), [*history, {"role": "user", "content": f"turn {turn}"}])
        history = result.to_input_list()
        said.append(result.final_output)
    return said


async def on_chats(url: str, turns: int) -> list[Any]:
    session = SQLiteSession("three")
    said = []
    for turn in range(1, turns + 1):
        result = await Runner.run(agent(url, chats=True), f"turn {turn}", session=session)
        said.append(result.final_output)
    return said


WAYS: list[Callable[[str, int], Awaitable[list[Any]]]] = [
    with_session,
    streamed_with_session,
    by_response_id,
    approved,
    on_chats,
]


async def main(url: str, turns: int) -> None:
    set_tracing_disabled(disabled=True)
    report: dict[str, Any] = {}
    for way in WAYS:
        before = ran
        said = await way(url, turns)
        report[way.__name__] = {"said": said, "ran": ran - before}
    sys.stdout.write(json.dumps(report) + "\n")


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
