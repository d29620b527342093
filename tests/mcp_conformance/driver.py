"""What the suite starts as the client under test: `python -m tests.mcp_conformance.driver URL`, with the scenario in the environment.

It opens the suite's server as a config would, and calls its tools as a model would: through the gate, the toolbox and, for what the
server asks a person, the queue of approvals, where the defaults of each form are the answer.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from callgate.calls.outcome import Outcome
from callgate.calls.states import BrokenCall, ReadyCall
from callgate.cli.own_tools import opened_tools
from callgate.config.load import load
from callgate.conversation.events import CallWritten
from callgate.conversation.ports import Report, ignore_progress
from callgate.conversation.turn import TurnBuilder
from callgate.tools.approvals.queue import ApprovalOutcome, ApprovalQueue, PendingApproval
from callgate.tools.executor import Tool
from callgate.tools.questions import PersonsAnswer, Question
from callgate.tools.registry import Registry
from callgate.tools.toolbox import PutQuestion, RequestToolbox, ToolSet

ROUNDS = ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type")
SUM = {"a": 5, "b": 3}
LISTED_ONLY = frozenset({"initialize", "json-schema-ref-no-deref"})
VALUES: Mapping[str, Any] = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


async def main(url: str, scenario: str, context: Mapping[str, Any]) -> None:
    server = {"url": url, "prefix": "", "allow_private": True, "elicitation": "both"}
    model = {"model_name": "m", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}
    loaded = load(None, flags={}, text=json.dumps({"mcp_servers": {"suite": server}, "model_list": [model]}))
    async with opened_tools(loaded, 20.0) as registry:
        sys.stderr.write(f"{registry.sources()}\n")
        client = Client(registry)
        for name, arguments in calls_of(scenario, registry, context):
            sys.stderr.write(f"{name} {await client.call(name, arguments)}\n")


def calls_of(scenario: str, registry: Registry, context: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The calls that a scenario is about."""
    tools = {tool.name: tool.tool for tool in registry.tools()}
    match scenario:
        case _ if scenario in LISTED_ONLY:
            return []
        case "http-custom-headers":
            calls = [(call["name"], call.get("arguments") or {}) for call in context.get("toolCalls", [])]
            return [call for call in calls if call[0] in tools]
        case "sep-2322-client-request-state":
            return [(name, {}) for name in ROUNDS]
        case "json-schema-2020-12-preservation":
            return [("json_schema_echo", {"schema": dict(tools["json_schema_2020_12_tool"].parameters)})]
        case "tools_call" | "request-metadata" | "http-standard-headers":
            return [("add_numbers", SUM)]
        case "elicitation-sep1034-client-defaults":
            return [("test_client_elicitation_defaults", {})]
        case "sse-retry":
            return [("test_reconnection", {})]
        case _:
            return [(name, _least(tool.parameters)) for name, tool in tools.items()]


class Client:
    """Makes calls, and answers what they ask."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._queue = ApprovalQueue(on_waiting=self._answer)

        async def put(
            question: Question, tool: Tool, call: ReadyCall, report: Report, key: str, number: int
        ) -> PersonsAnswer:
            return await self._queue.put(
                question, tool, call, report, run_id="", caller="suite", owner="suite", seconds=20.0, max_waiting=10
            )

        self._put: PutQuestion = put

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Outcome | BrokenCall:
        tools = ToolSet(self._registry.tools())
        toolbox = RequestToolbox(server_tools=tools, run_id="run", limits=self._registry.limits, put=self._put)
        turn = TurnBuilder(tools.offer, lambda: "call_1")
        turn.feed([CallWritten(name, json.dumps(arguments))])
        [call] = turn.finish().calls
        if isinstance(call, BrokenCall):
            return call
        toolbox.plan([call])
        return await toolbox.run(call, ignore_progress)

    def _answer(self, approval: PendingApproval) -> None:
        facts = approval.facts()
        content = None
        if "schema" in facts:
            fields = facts["schema"]["properties"]
            content = {
                name: field.get("default", VALUES.get(field["type"]))
                for name, field in fields.items()
                if "default" in field or name in facts["schema"]["required"]
            }
        decide = partial(self._queue.decide, approval.id, ApprovalOutcome.ANSWERED, by="suite", content=content)
        asyncio.get_running_loop().call_soon(decide)


def _least(parameters: Mapping[str, Any]) -> dict[str, Any]:
    properties = parameters.get("properties", {})
    return {name: VALUES.get(properties.get(name, {}).get("type"), "x") for name in parameters.get("required", [])}


if __name__ == "__main__":
    asyncio.run(
        main(
            sys.argv[-1],
            os.environ.get("MCP_CONFORMANCE_SCENARIO", ""),
            json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
        )
    )
