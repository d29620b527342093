"""The rounds of one request: as long as the server answers that it needs input, a person is asked and the request sent again.

Each round is a request with an id of its own. The server's state goes back byte for byte, only if it gave any, and with no other
request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.tools.kinds.mcp.elicitation import (
    CREATE,
    FORM_BYTES,
    MAX_QUESTIONS,
    STATE_BYTES,
    Elicitations,
    question_of,
    result_of,
)
from callgate.tools.kinds.mcp.wire import INPUT_REQUIRED, NOBODY_HERE, Result, RpcAnswer, Unreadable, encoded
from callgate.tools.questions import BadQuestion, NobodyToAsk, Question
from callgate.untrusted.readers import READ_ERRORS, json_reader

URL_REQUIRED: Final = -32042
"""The error by which servers of 2025-11-25 want a page to be opened before a call."""
MAX_ROUNDS: Final = 5
MAX_KEY: Final = 64
"""Characters of a server's name for a question."""

Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[RpcAnswer]]
"""Sends the request with some more parameters."""


class CannotAsk(Exception):
    """Raised where nobody can be asked. The text is for the model."""


async def in_rounds(send: Send, asking: Elicitations) -> RpcAnswer:
    """Return the last answer. Raises `CannotAsk`, and `Unreadable` for a question that is none."""
    answers_and_state: dict[str, Any] = {}
    for _ in range(MAX_ROUNDS):
        answer = await send(answers_and_state)
        round_of_answer = _round_in(answer, asking)
        if round_of_answer is None:
            return answer
        questions, state = round_of_answer
        answers_and_state = {}
        if questions:
            answers = await _answers(questions, asking)
            if answer.error is None:
                answers_and_state["inputResponses"] = answers
            elif any(page["action"] != "accept" for page in answers.values()):
                return answer  # the call itself was refused, and there is nothing to tell the server
        if state is not None:
            answers_and_state["requestState"] = state
    answer = await send(answers_and_state)
    if _round_in(answer, asking) is None:
        return answer
    raise Unreadable(f"The tool's server asked for input {MAX_ROUNDS + 1} times in one call, and was stopped.")


def _round_in(answer: RpcAnswer, asking: Elicitations) -> tuple[dict[str, Question], str | None] | None:
    """Return what an answer asks, and the state that goes back with what is answered; None where it asks nothing."""
    if answer.error is not None:
        if answer.error.code == URL_REQUIRED and "url" in asking.modes:
            return _pages(msgspec.Raw(encoded(answer.error.data)), asking), None
        return None
    result = answer.result
    if result is None or result.kind != INPUT_REQUIRED:
        return None
    if not asking.modes:
        raise CannotAsk(NOBODY_HERE)
    return _questions(result, asking), _state(result)


def _state(result: Result) -> str | None:
    if bytes(result.request_state) in (b"", b"null"):
        return None
    if len(bytes(result.request_state)) > STATE_BYTES:
        raise Unreadable(f"The tool's server asked for input with a state of more than {STATE_BYTES:,} bytes.")
    try:
        return _read_state(result.request_state)
    except READ_ERRORS:
        raise Unreadable("The tool's server asked for input in a way that is not the protocol's.") from None


class _InputRequest(msgspec.Struct):
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Pages(msgspec.Struct):
    elicitations: list[msgspec.Raw]


_read_state = json_reader(str)
_read_requests = json_reader(dict[str, _InputRequest] | None)
_read_pages = json_reader(_Pages)


def _questions(result: Result, asking: Elicitations) -> dict[str, Question]:
    raw = bytes(result.input_requests)
    if not raw:
        if not bytes(result.request_state):
            raise Unreadable("The tool's server asked for input without saying for what.")
        return {}
    if len(raw) > FORM_BYTES * MAX_QUESTIONS:
        raise Unreadable("The tool's server asked for more input than anybody can read.")
    try:
        requests = _read_requests(result.input_requests) or {}
    except READ_ERRORS:
        raise Unreadable("The tool's server asked for input in a way that is not the protocol's.") from None
    if len(requests) > MAX_QUESTIONS:
        raise Unreadable(f"The tool's server asked more than {MAX_QUESTIONS} questions at once.")
    questions = {}
    for key, request in requests.items():
        if request.method != CREATE:
            raise Unreadable(f"The tool's server asked for {request.method[:80]!r}, which is not done here.")
        questions[key] = replace(_question(request.params, asking), key=key[:MAX_KEY])
    return questions


def _pages(data: msgspec.Raw, asking: Elicitations) -> dict[str, Question]:
    try:
        pages = _read_pages(data).elicitations
    except READ_ERRORS:
        raise Unreadable("The tool's server wants a page to be opened, and does not say which.") from None
    if not pages or len(pages) > MAX_QUESTIONS:
        raise Unreadable("The tool's server wants no page to be opened, or too many.")
    questions = {str(place): _question(page, asking) for place, page in enumerate(pages)}
    if any(question.form is not None for question in questions.values()):
        raise Unreadable("The tool's server wants a page to be opened, and does not say which.")
    return questions


def _question(params: msgspec.Raw, asking: Elicitations) -> Question:
    try:
        return question_of(asking.server, params, asking.modes)
    except BadQuestion as error:
        raise Unreadable(f"The tool's server asked something that cannot be put to a person: {error}.") from None


async def _answers(questions: Mapping[str, Question], asking: Elicitations) -> dict[str, Any]:
    """Put all questions at once, and return the answers by their keys."""
    ask = asking.ask
    if ask is None:
        raise CannotAsk(NOBODY_HERE)
    tasks = {key: asyncio.ensure_future(ask(question)) for key, question in questions.items()}
    try:
        ended, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()
        return {key: result_of(task.result()) for key, task in tasks.items()}
    except NobodyToAsk as error:
        raise CannotAsk(f"The tool asks a person for input, and nobody can be asked: {error}.") from None
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
