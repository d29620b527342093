"""Clients that go through a whole session on one API: they run their own tool, send everything back, and ask on."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

OWN = "look"
"""The client's own tool."""
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
SYSTEM = "You are terse."
Body = dict[str, Any]


class Session:
    """A client of one API."""

    def __init__(self, client: httpx.AsyncClient, model: str, tools: Sequence[str], fields: Mapping[str, Any]) -> None:
        self.reports: list[Any] = []
        self._client = client
        self._model = model
        self._tools = tools
        self._fields = fields
        self._history: list[Any] = []

    async def say(self, words: str) -> str:
        """Ask, do what is asked for, and return what is said in the end."""
        self._history.append(self._question(words))
        while True:
            answer = await self._ask()
            results = self._take(answer)
            if not results:
                return self._text(answer)
            self._history += results

    async def _ask(self) -> Any:
        answer = await self._client.post(self.path, json={"model": self._model, **self._body(), **self._fields})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        self.reports.append(body.get("x_callgate"))
        return body

    path = ""

    def _question(self, words: str) -> Any:
        return {"role": "user", "content": words}

    def _body(self) -> Body:
        raise NotImplementedError

    def _take(self, answer: Any) -> list[Any]:
        """Put the answer into the history, and return the results of its calls."""
        raise NotImplementedError

    def _text(self, answer: Any) -> str:
        raise NotImplementedError


class ChatSession(Session):
    path = "/v1/chat/completions"

    def _body(self) -> Body:
        functions = [{"name": name, "description": f"Does {name}.", "parameters": SCHEMA} for name in self._tools]
        body: Body = {"messages": [{"role": "system", "content": SYSTEM}, *self._history]}
        if functions:
            body["tools"] = [{"type": "function", "function": function} for function in functions]
        return body

    def _take(self, answer: Any) -> list[Any]:
        message = answer["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        self._history.append(
            {"role": "assistant", "content": message["content"], **({"tool_calls": calls} if calls else {})}
        )
        return [{"role": "tool", "tool_call_id": call["id"], "content": "seen"} for call in calls]

    def _text(self, answer: Any) -> str:
        return str(answer["choices"][0]["message"]["content"])


class ResponsesSession(Session):
    path = "/v1/responses"

    def _body(self) -> Body:
        tools = [
            {"type": "function", "name": name, "description": f"Does {name}.", "parameters": SCHEMA}
            for name in self._tools
        ]
        return {"instructions": SYSTEM, "input": self._history, **({"tools": tools} if tools else {})}

    def _take(self, answer: Any) -> list[Any]:
        self._history += answer["output"]
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": call["call_id"], "output": "seen"} for call in calls]

    def _text(self, answer: Any) -> str:
        return str(answer["output"][-1]["content"][0]["text"])


class ContinuedSession(ResponsesSession):
    """The same, by `previous_response_id`."""

    _previous: str | None = None

    def _body(self) -> Body:
        body = {**super()._body(), **({"previous_response_id": self._previous} if self._previous else {})}
        self._history = []
        return body

    def _take(self, answer: Any) -> list[Any]:
        self._previous = answer["id"]
        results = super()._take(answer)
        self._history = []
        return results


class MessagesSession(Session):
    path = "/v1/messages"

    def _body(self) -> Body:
        tools = [{"name": name, "description": f"Does {name}.", "input_schema": SCHEMA} for name in self._tools]
        body: Body = {"max_tokens": 64, "messages": self._history}
        body["system"] = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
        return {**body, **({"tools": tools} if tools else {})}

    def _take(self, answer: Any) -> list[Any]:
        self._history.append({"role": "assistant", "content": answer["content"]})
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "seen"} for call in calls]
        return [{"role": "user", "content": results}] if results else []

    def _text(self, answer: Any) -> str:
        return str(answer["content"][-1]["text"])


SESSIONS: Mapping[str, type[Session]] = {
    "chat": ChatSession,
    "responses": ResponsesSession,
    "continued responses": ContinuedSession,
    "messages": MessagesSession,
}


def head_of(body: Any) -> str:
    """Return what stands before the first message of a user in a request to a provider, as it was written: instructions, tools."""
    told = {name: value for name, value in body.items() if name not in _OF_A_TURN}
    if "toolConfig" in told:  # Bedrock's tools, and which of them it has to call
        told["toolConfig"] = {name: value for name, value in told["toolConfig"].items() if name not in _OF_A_TURN}
    for name in ("messages", "contents", "input"):
        if isinstance(body.get(name), list):
            told[name] = body[name][: _first_of_user(body[name])]
    return json.dumps(told, ensure_ascii=False)


def history_of(body: Any) -> list[str]:
    """Return the messages of a request to a provider, as they were written."""
    [messages] = [body[name] for name in ("messages", "contents", "input") if isinstance(body.get(name), list)]
    return [json.dumps(message, ensure_ascii=False) for message in messages]


_OF_A_TURN = frozenset({"stream", "stream_options", "tool_choice", "toolChoice", "functionCallingConfig"})


def _first_of_user(messages: Sequence[Any]) -> int:
    return next(at for at, message in enumerate(messages) if message.get("role") == "user")
