"""What a server asks of a person (elicitation): in its answer to a call since 2026-07-28, in a request of its own before.

Only what its entry allows is declared to it and put to anybody. A question belongs to one call, and ends with it.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, JSONRPCMessage, JSONRPCRequest

from callgate.tools.kinds.mcp.wire import CAPABILITIES, RpcError
from callgate.tools.questions import (
    AskPerson,
    BadQuestion,
    NobodyToAsk,
    PersonsAnswer,
    Question,
    form_of,
    message_of,
    page_of,
)
from callgate.untrusted.readers import READ_ERRORS, json_reader

Mode: TypeAlias = Literal["form", "url"]
CREATE: Final = "elicitation/create"
MAX_QUESTIONS: Final = 8
"""Questions of one round."""
FORM_BYTES: Final = 64 * 1024
STATE_BYTES: Final = 64 * 1024

MODES: Final[Mapping[str, frozenset[Mode]]] = {
    "off": frozenset(),
    "form": frozenset({"form"}),
    "url": frozenset({"url"}),
    "both": frozenset({"form", "url"}),
}
"""What each word of an entry allows."""


def capabilities_of(modes: frozenset[Mode]) -> dict[str, Any]:
    """Return what a server is told that it may ask for."""
    if not modes:
        return {}
    return {"elicitation": {mode: {} for mode in sorted(modes)}}


def declare(message: JSONRPCMessage, capabilities: Mapping[str, Any]) -> None:
    """Put into a message of the SDK what we can do, where it says so. The SDK itself declares both ways of asking, or none."""
    if not isinstance(message, JSONRPCRequest) or message.params is None:
        return
    holder = message.params if message.method == "initialize" else message.params.get("_meta")
    key = "capabilities" if message.method == "initialize" else CAPABILITIES
    if isinstance(holder, dict) and key in holder:
        holder[key] = {**{name: value for name, value in holder[key].items() if name != "elicitation"}, **capabilities}


class _Params(msgspec.Struct):
    mode: str = "form"
    message: Any = None
    schema: Any = msgspec.field(default=None, name="requestedSchema")
    url: Any = None


def question_of(server: str, params: msgspec.Raw, modes: frozenset[Mode]) -> Question:
    """Return the question of a server. Raises `BadQuestion`."""
    if len(bytes(params)) > FORM_BYTES:
        raise BadQuestion(f"it takes more than {FORM_BYTES:,} bytes")
    try:
        fields = _read_params(params)
    except READ_ERRORS:
        raise BadQuestion("it is none of the protocol's") from None
    if fields.mode not in modes:
        raise BadQuestion(f"it asks by {fields.mode[:40]!r}, which `elicitation` of this server does not allow")
    if fields.mode == "form":
        return Question(server, message_of(fields.message), form=form_of(fields.schema))
    return Question(server, message_of(fields.message), url=page_of(fields.url))


def result_of(answer: PersonsAnswer) -> dict[str, Any]:
    """Return an answer as the protocol has it."""
    if answer.content is None:
        return {"action": answer.action}
    return {"action": answer.action, "content": answer.content}


class Elicitations:
    """What one call has asked in requests of the server's own. Its questions end with it."""

    def __init__(self, server: str, modes: frozenset[Mode], ask: AskPerson | None) -> None:
        self.server = server
        self.modes = modes
        self.ask = ask
        self._asking: dict[str, asyncio.Task[PersonsAnswer]] = {}

    async def answer(self, id: str, params: msgspec.Raw) -> dict[str, Any] | RpcError:
        """Put a question, and return the result or the error for the server."""
        try:
            question = question_of(self.server, params, self.modes)
        except BadQuestion as error:
            return RpcError(INVALID_PARAMS, f"This question cannot be asked: {error}")
        if self.ask is None or len(self._asking) >= MAX_QUESTIONS:
            return {"action": "cancel"}
        task = self._asking[id] = asyncio.ensure_future(self.ask(question))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            del self._asking[id]
        if task.cancelled():
            return RpcError(INTERNAL_ERROR, "The call that asked has ended.")
        if isinstance(task.exception(), NobodyToAsk):
            return {"action": "cancel"}
        return result_of(task.result())

    def withdraw(self, id: str) -> None:
        """Take back a question that the server does not ask any more."""
        if id in self._asking:
            self._asking[id].cancel()

    async def close(self) -> None:
        """Take back all questions, at the end of the call."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class CallsThatAsk:
    """The calls of a session that may ask. A server's own request names none of them."""

    def __init__(self) -> None:
        self._calls: list[Elicitations] = []

    def enter(self, call: Elicitations) -> Callable[[], None]:
        """Add a call; return the function that removes it."""
        self._calls.append(call)
        return lambda: self._calls.remove(call)

    async def answer(self, id: str, params: msgspec.Raw) -> dict[str, Any] | RpcError:
        """Put a question that came beside all calls to the caller of the only one. Of several it could be anybody's."""
        if len(self._calls) != 1:
            why = "no call that may ask is running" if not self._calls else "several calls are running"
            return RpcError(INTERNAL_ERROR, f"This question cannot be asked: {why}, and it does not say whose it is.")
        return await self._calls[0].answer(id, params)


_read_params = json_reader(_Params)
