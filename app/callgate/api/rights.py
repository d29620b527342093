"""Checks the permissions of a caller: for runs, usage, metrics and administration, and of what goes on after its question."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Message, Send

from callgate.api.middleware import RequestContext, context_of
from callgate.api.run_ports import StreamEnd
from callgate.callers.caller import ANONYMOUS, Caller, owner_name
from callgate.callers.tokens import TokenEnded
from callgate.conversation.attempts import Attempts
from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, TurnModel
from callgate.runtime.chat_setup import ToolsNow
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime

EVENT_STREAM: Final = b"text/event-stream"
_NEVER: Final = -1
"""No generation of keys."""
Given = TypeVar("Given")


def caller_of(request: Request, route: str) -> Caller:
    """Return the caller of a request, and set its route for metrics."""
    context = context_of(request.scope)
    context.route = route
    assert context.caller is not None, "the middleware requires a caller here"
    return context.caller


def seen_by(runtime: Runtime, caller: Caller, what: str = "see runs") -> str | None:
    """Return the name of the key whose runs a caller may see, None for all. Raises where it may see none."""
    if runtime.access.may_see_all(caller):
        return None
    if caller.see == "own" and (caller.anonymous or caller.name != ANONYMOUS.name):
        return caller.name
    if caller.anonymous:
        why = "because this server listens on more than loopback: make one with `see: own` or `see: all`"
        raise _forbidden(f"Nobody may {what} without a key, {why}.", "see_not_allowed")
    raise _forbidden(f"This key may not {what} (`see: own` or `see: all`).", "see_not_allowed")


def check_sees_all(runtime: Runtime, caller: Caller, what: str) -> None:
    if not runtime.access.may_see_all(caller):
        raise _forbidden(f"{what} needs a key with `see: all`.", "see_not_allowed")


def check_admin(runtime: Runtime, caller: Caller) -> None:
    """Raise unless a caller may administer the server."""
    if not runtime.access.may_administer(caller):
        raise _forbidden("This needs a key with `admin: on`.", "admin_not_allowed")


def check_decider(runtime: Runtime, caller: Caller) -> str | None:
    """Raise unless a caller may decide about approvals. Return None for who may decide about all; the owner of what waits for who may
    only answer the questions that tools ask in his own requests."""
    if runtime.access.may_approve(caller):
        return None
    if runtime.config.approvals.input == "own" and not caller.anonymous:
        return owner_name(caller)
    if caller.anonymous:
        who = "Nobody may decide about calls without a key"
    else:
        who = "This key may not decide about calls"
    raise _forbidden(f"{who}.", "approval_not_allowed")


class Capability(msgspec.Struct, Generic[Given], eq=False, kw_only=True):
    """What a request was given that lives on: asked again whenever something of it is sent.

    As long as neither the keys nor the config have changed this compares two numbers. What is given to nobody is told by an error.
    """

    _manager: RuntimeManager
    _headers: Mapping[str, str] | None
    """None where its key is known by its name alone."""
    _caller: Caller
    _check: Callable[[Runtime, Caller], Given]
    _runtime: Runtime
    _generation: int
    _given: Given

    @staticmethod
    def of(
        manager: RuntimeManager, context: RequestContext, check: Callable[[Runtime, Caller], Given]
    ) -> "Capability[Given]":
        """`check` returns what a caller is given, or raises a `ChatError`."""
        caller = context.caller
        assert caller is not None, "the middleware requires a caller here"
        return Capability(
            _manager=manager,
            _headers=context.headers,
            _caller=caller,
            _check=check,
            _runtime=context.admitted_by or manager.current,
            _generation=context.generation,
            _given=check(manager.current, caller),
        )

    def ask(self) -> Given:
        """Return what its caller is given by the keys and the config of now. Raises `ChatError` where that is nothing."""
        runtime = self._manager.current
        generation = runtime.access.generation()
        if runtime is not self._runtime or generation != self._generation:
            self._given = self._check(runtime, self._caller_now(runtime))
            self._runtime = runtime
            self._generation = generation
        return self._given

    def owner(self) -> str:
        """Return the owner of what its caller holds."""
        return owner_name(self._caller)

    def _caller_now(self, runtime: Runtime) -> Caller:
        if self._headers is None:
            known = runtime.access.caller_named(self.owner())
            if known is None:
                raise no_key_any_more()
            return known
        try:
            caller = runtime.access.admit(self._headers)
        except TokenEnded:
            with_newer_token = runtime.access.caller_named(self.owner())
            if with_newer_token is None:
                raise
            return with_newer_token
        if owner_name(caller) != self.owner():
            raise _forbidden("This key is another's by now.", "key_changed")
        return caller


def caller_after_body(manager: RuntimeManager, context: RequestContext) -> Caller:
    """Return the caller of a request, once its body is there. Raises `ChatError` where its key ended meanwhile."""
    caller = context.caller
    if caller is None or not context.is_current(manager.current):
        return let_in_again(manager, context)
    return caller


def let_in_again(manager: RuntimeManager, context: RequestContext) -> Caller:
    """Return the caller of a request that has waited: its key may have been revoked since its head was read."""
    before = context.caller
    assert before is not None, "the middleware requires a caller here"
    runtime = manager.current
    caller = runtime.access.admit(context.headers)
    if owner_name(caller) != owner_name(before):
        raise _forbidden("This key is another's by now.", "key_changed")
    context.admit(caller, runtime)
    return caller


def no_key_any_more() -> ChatError:
    """Return the error of a run whose key was revoked."""
    return ChatError(401, "The key of this run is no key any more.", code="invalid_api_key")


def rights_of_chat(
    manager: RuntimeManager,
    context: RequestContext,
    began_with: Runtime,
    model: str | None,
    *,
    by_name: bool = False,
    check_caller: Callable[[Runtime, Caller], None] | None = None,
    was_asked: bool = False,
) -> Capability[ToolsNow | None]:
    """Return what a chat asks while it runs: it is given None as long as its caller may what it might when it was let in.

    `began_with`: the runtime of the chat. `model`: the one that it asks, None where no model is asked. `by_name`: the run is carried on
    without its request, so that the name of its key counts. `check_caller`: what else its caller has to be allowed. `was_asked`: its model
    was asked already, so that what has changed since is noticed with the next question."""
    first_caller = context.caller
    admitted_by = context.admitted_by
    assert first_caller is not None, "the middleware requires a caller here"
    capability = Capability(
        _manager=manager,
        _headers=None if by_name else context.headers,
        _caller=first_caller,
        _check=partial(_tools_of_chat, began_with, first_caller, model, check_caller),
        _runtime=began_with,
        _generation=context.generation if admitted_by is began_with else _NEVER,
        _given=None,
    )
    if not was_asked and (manager.current is not began_with or admitted_by is not began_with):
        capability.ask()
    return capability


def _tools_of_chat(
    began_with: Runtime,
    first_caller: Caller,
    model: str | None,
    check_caller: Callable[[Runtime, Caller], None] | None,
    runtime: Runtime,
    caller: Caller,
) -> ToolsNow | None:
    if runtime is began_with and (caller is first_caller or caller == first_caller):
        return None
    if check_caller is not None:
        check_caller(runtime, caller)
    return runtime.tools_now(caller, model)


class RightfulModel(msgspec.Struct, eq=False, kw_only=True):
    """Wraps a model: asked for a turn after the first only as long as its caller may ask it."""

    _model: TurnModel
    _capability: Capability[ToolsNow | None]
    _is_first: bool = True

    @property
    def name(self) -> str:
        return self._model.name

    def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        if not self._is_first:
            self._capability.ask()
        self._is_first = False
        return self._model.send(request, attempts)


def anything(runtime: Runtime, caller: Caller) -> None:
    """Check no more than that a caller's key is valid and still his."""


async def send_while_allowed(
    answer: Callable[[Send], Awaitable[None]], send: Send, capability: Capability[Any], end: StreamEnd
) -> None:
    """Send what outlives its question, and ask before each message. A stream that has begun is ended with the error; `end`
    writes it in the form of its API, by what was written."""
    written: list[bytes] = []
    is_streamed = False

    async def send_allowed(message: Message) -> None:
        nonlocal is_streamed
        if message["type"] == "http.response.start":
            capability.ask()
            is_streamed = any(value.startswith(EVENT_STREAM) for _, value in message["headers"])
        elif is_streamed and message.get("more_body"):
            capability.ask()
            written.append(message["body"])
        await send(message)

    try:
        await answer(send_allowed)
    except ChatError as error:
        if not is_streamed:
            raise
        await send({"type": "http.response.body", "body": end(error, b"".join(written)), "more_body": False})


def _forbidden(message: str, code: str) -> ChatError:
    return ChatError(403, message, type="permission_error", code=code)
