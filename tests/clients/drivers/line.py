"""What the Python drivers share: the line protocol, and the tool and the type that all clients bring."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

Asked = dict[str, Any]
Scenario = Callable[[Asked], Awaitable[dict[str, Any]]]

MEANINGS = {"crane": "a bird with long legs", "bank": "the side of a river"}
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup_word",
        "description": "What a word means.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}},
            "required": ["word"],
            "additionalProperties": False,
        },
    },
}


class Person(BaseModel):
    """Someone, with a name and an age."""

    name: str
    age: int


class OwnTool:
    """The client's own tool, which remembers how it was called."""

    def __init__(self) -> None:
        self.ran: list[list[Any]] = []

    def lookup_word(self, word: str) -> str:
        """What a word means."""
        self.ran.append(["lookup_word", {"word": word}])
        return f"{word}: {MEANINGS[word]}"


def counted(usage: Any) -> list[int] | None:
    """Usage as the official client holds it."""
    return [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens] if usage else None


def play(scenarios: Mapping[str, Scenario], *packages: str) -> None:
    """Plays what is asked for until the input ends. Whatever else prints to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    async def hello(_: Asked) -> dict[str, Any]:
        return {"versions": {package: version(package) for package in packages}}

    async def live() -> None:
        known = {"hello": hello, **scenarios}
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            try:
                answer = await known[asked["do"]](asked)
            except Exception as error:  # noqa: BLE001 - which exception comes is what the test wants to know
                answer = {"error": described(error)}
            print(json.dumps(answer), file=answers, flush=True)

    asyncio.run(live())


def described(error: BaseException) -> dict[str, Any]:
    """An exception, by its type and by what it says of the answer."""
    body = getattr(error, "body", None)
    inside = body.get("error", body) if isinstance(body, dict) else {}
    return {
        "type": type(error).__name__,
        "message": str(error)[:2000],
        "status": getattr(error, "status_code", None),
        "code": getattr(error, "code", None) or inside.get("code"),
        "param": getattr(error, "param", None) or inside.get("param"),
    }
