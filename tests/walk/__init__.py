"""The walk of a request: the functions of Callgate that one request enters, in their order, and how often the next one stands
in another module. What a reader follows who wants to know what becomes of a request.

    python -m tests.walk                    the figures of all walks
    python -m tests.walk "plain stream"     one walk, module by module
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import callgate
from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.configs import config_dict
from tests.harness.server import serve
from tests.harness.wire import raw_connection
from tests.scripted_upstream import Call, Reply, Upstream

PACKAGE = str(Path(callgate.__file__).parent) + "/"
ANONYMOUS = {"<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}
REHEARSALS = 3
"""Requests before the one that is followed: the first ones fill caches."""
PAUSE = 0.5
"""Seconds for what follows the last rehearsal to end."""
TOOLS_PATIENCE = 40.0
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
WEATHER_TURN = (Reply(calls=[Call("get_weather", {"city": "Oslo"})]), Reply(text="4 C."))
FAR_TURN = (Reply(calls=[Call("far_echo", {"text": "x"})]), Reply(text="done"))
MCP_SERVER = {"far": {"command": sys.executable, "args": [str(Path(__file__).with_name("mcp_server.py"))]}}


@dataclass(frozen=True, slots=True)
class Case:
    """A request, what the model answers to it, and the tools on offer."""

    path: str
    body: Mapping[str, Any]
    replies: Sequence[Reply]
    tools: Sequence[str] = ()
    mcp: bool = False


CASES: Mapping[str, Case] = {
    "plain stream": Case(CHAT, {**QUESTION, "stream": True}, [Reply(text="Hello there, you who ask.")]),
    "tool turn": Case(CHAT, QUESTION, WEATHER_TURN, tools=["get_weather"]),
    "tool turn, streamed": Case(CHAT, {**QUESTION, "stream": True}, WEATHER_TURN, tools=["get_weather"]),
    "responses and MCP": Case(RESPONSES, {"model": "m", "input": "hello"}, FAR_TURN, mcp=True),
    "responses and MCP, streamed": Case(
        RESPONSES, {"model": "m", "input": "hello", "stream": True}, FAR_TURN, mcp=True
    ),
}


GOALS: Mapping[str, tuple[int, int]] = {
    "plain stream": (38, 140),
    "tool turn": (60, 270),
    "responses and MCP": (72, 330),
}
"""Modules and crossings to get down to."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A module, and the functions of it that were entered one after the other."""

    module: str
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    visits: Sequence[Visit]

    def modules(self) -> set[str]:
        return {visit.module for visit in self.visits}

    def crossings(self) -> int:
        """How often the next function stands in another module."""
        return len(self.visits) - 1

    def figures(self) -> tuple[int, int]:
        return len(self.modules()), self.crossings()


async def walk(case: Case) -> Walk:
    """Follow the fourth request of a connection."""
    steps = Steps()
    async with Upstream() as upstream:
        upstream.script("m", [*case.replies] * (REHEARSALS + 1))
        async with served_case(case, upstream.url) as url, raw_connection(url) as connection:
            for _ in range(REHEARSALS):
                await connection.post(case.path, case.body)
                await connection.answer()
            await asyncio.sleep(PAUSE)
            sys.setprofile(steps.note)
            try:
                await connection.post(case.path, case.body)
                answer = await connection.answer()
            finally:
                sys.setprofile(None)
    assert answer.status == 200, answer.body
    return Walk(steps.visits())


@asynccontextmanager
async def served_case(case: Case, model_url: str) -> AsyncIterator[str]:
    options: dict[str, Any] = {"mcpServers": MCP_SERVER, "entry": {"tools": ["*"]}} if case.mcp else {}
    app = create_app(Config.model_validate(config_dict(model_url, tools=case.tools, **options)))
    async with serve(app) as url:
        async with asyncio.timeout(TOOLS_PATIENCE):
            while not app.state.manager.current.registry.is_complete:  # noqa: ASYNC110 - nothing says when it is
                await asyncio.sleep(0.02)
        yield url


class Steps:
    """The functions of ours that were entered, or entered again after waiting."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, str]] = []

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in ANONYMOUS:
            self._steps.append((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    def visits(self) -> list[Visit]:
        visits: list[Visit] = []
        for module, function in self._steps:
            if visits and visits[-1].module == module:
                visits[-1] = Visit(module, (*visits[-1].functions, function))
            else:
                visits.append(Visit(module, (function,)))
        return visits
