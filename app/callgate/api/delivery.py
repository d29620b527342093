"""Decides how an answer is sent: how calls of our tools are shown in it, and which token counts it reports, the sum over its turns
or those of its last turn.

Some agents take the usage of an answer for the size of their context. Where several turns were run for one answer, the sum makes
them compact a conversation that is small.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from callgate.api.chat_request import AS_USUAL, ChatRequest, Delivery
from callgate.api.middleware import RequestContext
from callgate.api.rights import seen_by
from callgate.callers.caller import Caller, ToolEvents, UsageSetting
from callgate.conversation.errors import ChatError
from callgate.conversation.usage import UsageScope
from callgate.runtime.route import Route
from callgate.runtime.runtime import Runtime

HEADER: Final = "x-callgate-usage"
SETTINGS: Final[Mapping[str, UsageSetting]] = {"auto": "auto", "sum": "sum", "last_turn": "last_turn"}
COMPACTING_AGENTS: Final = ("codex", "opencode", "qwencode")
"""The beginnings of the user agents, in lower case, of clients that compact by the usage of an answer: Codex, opencode, and
Qwen Code on Chat Completions. `tests/clients/test_compaction.py` runs each of them, and shows that it compacts by the sum."""
CLAUDE_CODE: Final = re.compile(r"claude-cli/(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
AGENT_CHARS: Final = 64
"""Characters of a user agent that are looked at, and remembered."""
READS_ITERATIONS: Final = (2, 1, 290)
"""The first version of Claude Code that was seen to calculate its context from `usage.iterations`; 2.1.248 compacts by the sum.
Qwen Code has the same user agent on Messages, with its own version (0.24.4), and compacts by the sum too."""


def delivery_of(
    request: ChatRequest, runtime: Runtime, route: Route, context: RequestContext, caller: Caller
) -> Delivery:
    """Return how the answer is sent: as the request says, or else its key, or else its model."""
    if request.delivery is AS_USUAL and HEADER not in context.headers:
        entry = route.entry
        agent = context.headers.get("user-agent", "")[:AGENT_CHARS]
        return _usual(caller.events or entry.events, caller.usage or entry.usage, agent)
    tool_events = request.delivery.tool_events
    if tool_events is None:
        tool_events = caller.events or route.entry.events
    elif tool_events == "trace":
        seen_by(runtime, caller, "trace runs")
    scope = usage_scope(context.headers, caller.usage, route.entry.usage)
    delivery = request.delivery
    if tool_events == delivery.tool_events and scope == delivery.usage_scope:
        return delivery
    return replace(delivery, tool_events=tool_events, usage_scope=scope)


@lru_cache(maxsize=1024)
def _usual(tool_events: ToolEvents, setting: UsageSetting, agent: str) -> Delivery:
    """Return how an answer is sent whose request says nothing of it."""
    return replace(AS_USUAL, tool_events=tool_events, usage_scope=usage_scope({"user-agent": agent}, setting, setting))


def usage_scope(headers: Mapping[str, str], of_key: UsageSetting | None, of_entry: UsageSetting) -> UsageScope:
    """Return what an answer reports, by the request's header, or else its key's setting, or else its model's. Raises `ChatError` 400
    for a header with an unknown value."""
    setting = of_key or of_entry
    if HEADER in headers:
        setting = _setting_of(headers[HEADER])
    if setting != "auto":
        return setting
    if _compacts(headers.get("user-agent", "")[:AGENT_CHARS]):
        return "last_turn"
    return "sum"


def _setting_of(value: str) -> UsageSetting:
    if value not in SETTINGS:
        message = f"Unknown usage {value[:40]!r} in the header X-Callgate-Usage; use one of {', '.join(SETTINGS)}."
        raise ChatError(400, message, param="X-Callgate-Usage", code="invalid_value")
    return SETTINGS[value]


@lru_cache(maxsize=256)
def _compacts(agent: str) -> bool:
    """True if a client is known to take the usage of an answer for the size of its context."""
    agent = agent.lower()
    if (claude_code := CLAUDE_CODE.match(agent)) is not None:
        return tuple(map(int, claude_code.groups())) < READS_ITERATIONS
    return agent.startswith(COMPACTING_AGENTS)
