"""What the suite starts as the client under test, by `in_turn`: with the URL of its server, and the scenario in the environment.

It opens the suite's server as a config would, and calls its tools as a model would: through the gate, the toolbox and, for what the
server asks a person, the queue of approvals, where the defaults of each form are the answer.
"""

import asyncio
import json
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx

from callgate.calls.outcome import Outcome
from callgate.calls.states import BrokenCall, ReadyCall
from callgate.cli.own_logins import opened_logins
from callgate.cli.own_tools import opened_tools
from callgate.config.load import Loaded, load
from callgate.conversation.events import CallWritten
from callgate.conversation.ports import Report, ignore_progress
from callgate.conversation.turn import TurnBuilder
from callgate.tools.approvals.queue import ApprovalOutcome, ApprovalQueue, PendingApproval
from callgate.tools.executor import Tool
from callgate.tools.kinds.mcp.authorization import OPERATOR
from callgate.tools.kinds.mcp.logins import LoginFailed, LoginState
from callgate.tools.kinds.mcp.oauth.service import OAuthLogins
from callgate.tools.questions import PersonsAnswer, Question
from callgate.tools.registry import Registry
from callgate.tools.source_supervisor import SourceState
from callgate.tools.toolbox import PutQuestion, RequestToolbox, ToolSet

ROUNDS = ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type")
SUM = {"a": 5, "b": 3}
LISTED_ONLY = frozenset({"initialize", "json-schema-ref-no-deref"})
VALUES: Mapping[str, Any] = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


CALLBACK = "http://127.0.0.1:9/callback"
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
LOGINS = 3
OPEN_SECONDS = 20.0


async def main(url: str, scenario: str, context: Mapping[str, Any]) -> None:
    server = {"url": url, "prefix": "", "allow_private": True, "elicitation": "both"}
    if scenario.startswith("auth/"):
        server["oauth"] = oauth_of(scenario, url, context)
    model = {"model_name": "m", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}
    loaded = load(None, flags={}, text=json.dumps({"mcp_servers": {"suite": server}, "model_list": [model]}))
    if scenario.startswith("auth/"):
        await with_login(loaded, scenario, context)
        return
    async with opened_tools(loaded, OPEN_SECONDS) as registry:
        sys.stderr.write(f"{registry.sources()}\n")
        client = Client(registry)
        for name, arguments in calls_of(scenario, registry, context):
            sys.stderr.write(f"{name} {await client.call(name, arguments)}\n")


def oauth_of(scenario: str, url: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that an operator would write for the server of a scenario."""
    own = {"client_id": context.get("client_id"), "client_secret": context.get("client_secret")}
    settings: dict[str, Any] = {name: value for name, value in own.items() if value}
    if scenario == "auth/basic-cimd":
        return {"client_id": CLIENT_DOCUMENT}
    if scenario.startswith("auth/2025-03-26"):
        return {"legacy": True}
    if scenario.startswith("auth/client-credentials"):
        settings["grant"] = "client_credentials"
        if "private_key_pem" in context:
            settings["private_key"] = context["private_key_pem"]
    if settings:
        settings["issuer"] = context.get("issuer") or issuer_of(url)
    return settings


def issuer_of(url: str) -> str:
    """What the operator of the server has told us."""
    base = url.removesuffix("/mcp")
    with urllib.request.urlopen(f"{base}/.well-known/oauth-protected-resource/mcp") as answer:
        return str(json.load(answer)["authorization_servers"][0])


async def with_login(loaded: Loaded, scenario: str, context: Mapping[str, Any]) -> None:
    """Open the server and call its tools, with a login whenever that is said to be missing."""
    async with opened_logins(loaded) as logins, opened_tools(loaded, 2.0, logins=logins) as registry:
        left = LOGINS
        while await log_in_if_needed(logins, registry, left):
            left -= 1
            await until_open(logins, registry)
        client = Client(registry)
        for name, arguments in calls_of(scenario, registry, context):
            sys.stderr.write(f"{name} {await client.call(name, arguments)}\n")
            while await log_in_if_needed(logins, registry, left):
                left -= 1
                sys.stderr.write(f"{name} {await client.call(name, arguments)}\n")


async def log_in_if_needed(logins: OAuthLogins, registry: Registry, left: int) -> bool:
    """Log in as a person would, if that is said to be missing; return whether that was done."""
    [status] = await logins.statuses()
    sys.stderr.write(f"{status} {registry.sources()}\n")
    if status.state is LoginState.OK or not left:
        return False
    try:
        begun = await logins.begin("suite", OPERATOR, CALLBACK)
        back = await asyncio.to_thread(visit, begun.address)
        await logins.finish(back["state"], back, browser=begun.browser)
    except LoginFailed as error:
        sys.stderr.write(f"{error}\n")
        return False
    return True


def visit(address: str) -> dict[str, str]:
    """Go to the page of the authorization server, which has no page here, up to the address that it sends the browser to."""
    response = httpx.get(address, follow_redirects=False, trust_env=False)
    query = urllib.parse.urlsplit(response.headers["location"]).query
    return dict(urllib.parse.parse_qsl(query))


async def until_open(logins: OAuthLogins, registry: Registry) -> None:
    """Wait until the server is open, or wants another login."""
    async with asyncio.timeout(OPEN_SECONDS):
        while registry.sources()[0].state is not SourceState.READY:
            await asyncio.sleep(0.05)
            [status] = await logins.statuses()
            if status.state is not LoginState.OK:
                return


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
        turn = TurnBuilder(offer=tools.offer, ids=lambda: "call_1")
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
