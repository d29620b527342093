"""The OpenAI Agents SDK with a hosted MCP tool whose calls it approves, on its defaults: the whole history goes back each time.

python agents_approvals.py URL   prints one line of JSON: what each of its three ways came to
"""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, HostedMCPTool, OpenAIResponsesModel, Runner, RunState, SQLiteSession, set_tracing_disabled
from openai import AsyncOpenAI

ENTRY = {"type": "mcp", "server_label": "callgate", "require_approval": "always"}


def agent(url: str, *, asks: bool = True) -> Agent[None]:
    def approve(request: Any) -> Any:
        return {"approve": request.data.name == "add"}

    options: dict[str, Any] = {"on_approval_request": approve} if asks else {}
    tool = HostedMCPTool(tool_config=ENTRY, **options)
    model = OpenAIResponsesModel("m", AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0))
    return Agent("tester", model=model, tools=[tool])


async def run(url: str) -> Any:
    result = await Runner.run(agent(url), "1+2?")
    again = await Runner.run(agent(url), [*result.to_input_list(), {"role": "user", "content": "sure?"}])
    return [result.final_output, again.final_output]


async def streamed(url: str) -> Any:
    session = SQLiteSession("one")
    said = []
    for prompt in ("1+2?", "sure?"):
        result = Runner.run_streamed(agent(url), prompt, session=session)
        async for _ in result.stream_events():
            pass
        said.append(result.final_output)
    return said


async def interrupted(url: str) -> Any:
    asking = agent(url, asks=False)
    result = await Runner.run(asking, "1+2?")
    assert result.interruptions
    text = result.to_state().to_string()
    state = await RunState.from_string(asking, text)
    for waiting in state.get_interruptions():
        state.approve(waiting)
    result = await Runner.run(asking, state)
    again = await Runner.run(asking, [*result.to_input_list(), {"role": "user", "content": "sure?"}])
    return [result.final_output, again.final_output]


async def main(url: str) -> None:
    set_tracing_disabled(disabled=True)
    said: dict[str, Any] = {}
    for way in (run, streamed, interrupted):
        said[way.__name__] = await way(url)
    sys.stdout.write(json.dumps(said) + "\n")


asyncio.run(main(sys.argv[1]))
