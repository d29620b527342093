"""MCP servers that clients name, by a label of the config and by an address, as each client has it.

python mcp_servers.py CLIENT URL KEY ADDRESS   prints one line of JSON: the text of both answers, and the servers of the calls in them
"""

import asyncio
import json
import sys
from typing import Any

BETA = "mcp-client-2025-11-20"
OURS = "callgate:callgate"
Found = list[tuple[str, list[str]]]


def entry(label: str, address: str) -> dict[str, Any]:
    named = {"type": "mcp", "server_label": label, "require_approval": "never"}
    if address == OURS:
        return named
    return {**named, "server_url": address, "authorization": "tok-of-the-client-1"}


async def openai_py(url: str, key: str, servers: list[tuple[str, str]]) -> Found:
    from openai import AsyncOpenAI

    found: Found = []
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as ai:
        for label, address in servers:
            response = await ai.responses.create(model="m", input="go", tools=[entry(label, address)])  # type: ignore[list-item]
            found.append(
                (response.output_text, [item.server_label for item in response.output if item.type == "mcp_call"])
            )
    return found


async def agents(url: str, key: str, servers: list[tuple[str, str]]) -> Found:
    from agents import Agent, HostedMCPTool, OpenAIResponsesModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)
    found: Found = []
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as ai:
        for label, address in servers:
            tool = HostedMCPTool(tool_config=entry(label, address))
            agent = Agent("tester", model=OpenAIResponsesModel("m", ai), tools=[tool])
            result = await Runner.run(agent, "go")
            calls = [item for answer in result.raw_responses for item in answer.output if item.type == "mcp_call"]
            found.append((str(result.final_output), [item.server_label for item in calls]))
    return found


async def langchain(url: str, key: str, servers: list[tuple[str, str]]) -> Found:
    from langchain_openai import ChatOpenAI

    found: Found = []
    for label, address in servers:
        model = ChatOpenAI(base_url=f"{url}/v1", api_key=key, model="m", use_responses_api=True, max_retries=0)
        message = await model.bind_tools([entry(label, address)]).ainvoke("go")
        calls = [block for block in message.content if isinstance(block, dict) and block.get("type") == "mcp_call"]
        found.append((str(message.text), [call["server_label"] for call in calls]))
    return found


async def pydantic_ai(url: str, key: str, servers: list[tuple[str, str]]) -> Found:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import NativeTool
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.native_tools import MCPServerTool
    from pydantic_ai.providers.openai import OpenAIProvider

    found: Found = []
    for label, address in servers:
        ai = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        model = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=ai))
        tool = MCPServerTool(id=label, url=address)
        result = await Agent(model, capabilities=[NativeTool(tool)]).run("go")
        parts = [part for message in result.all_messages() for part in message.parts]
        calls = [part for part in parts if part.part_kind == "builtin-tool-call" and "tool_name" in str(part.args)]
        found.append((result.output, [str(part.tool_name).partition(":")[2] for part in calls]))
        await ai.close()
    return found


async def anthropic_py(url: str, key: str, servers: list[tuple[str, str]]) -> Found:
    from anthropic import AsyncAnthropic

    found: Found = []
    async with AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as claude:
        for label, address in servers:
            message = await claude.beta.messages.create(
                model="m",
                max_tokens=100,
                messages=[{"role": "user", "content": "go"}],
                mcp_servers=[{"type": "url", "name": label, "url": address}],
                tools=[{"type": "mcp_toolset", "mcp_server_name": label}],
                betas=[BETA],
                extra_headers={},
            )
            text = "".join(block.text for block in message.content if block.type == "text")
            found.append((text, [block.server_name for block in message.content if block.type == "mcp_tool_use"]))
    return found


CLIENTS = {
    "openai": openai_py,
    "agents": agents,
    "langchain": langchain,
    "pydantic-ai": pydantic_ai,
    "anthropic": anthropic_py,
}


if __name__ == "__main__":
    _, client, url, key, address = sys.argv
    sys.stdout.write(json.dumps(asyncio.run(CLIENTS[client](url, key, [("callgate", OURS), ("far", address)]))))
