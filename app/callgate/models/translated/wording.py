"""Has long requests worded in a child process: litellm's provider classes traverse a request many times, and recurse in it.

What goes there is the request and the entry's settings that shape its body: no key, no address, no header. What comes back is
plain: the body, and the values of which the parent makes the readers of the answer. The objects themselves, litellm's parsers
and the provider's sign-in, stay with the parent.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import DeferredTools, ModelRequest
from callgate.models.errors import UpstreamError
from callgate.models.resolve import LiteLLMSettings
from callgate.models.translated.translation import NOT_SHAPING
from callgate.parsers.jobs import MAX_ANSWER, Job, ParserFailed, Reason
from callgate.parsers.pool import ParserPool
from callgate.untrusted.doors import OWN_BYTES, Door, Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader
from callgate.untrusted.slices import open_in_slices

WORDED: Final = Door(name="request as a child worded it", bytes=MAX_ANSWER)
_PROCESS: Final = "callgate.models.translated.wording_process"
WORD_REQUEST: Final = Job("wording", f"{_PROCESS}:word", WORDED, f"{_PROCESS}:load")
TO_WORD: Final = Door(
    name="request to be worded",
    bytes=OWN_BYTES,
    values=sys.maxsize,  # its messages were counted when they came in, and are decoded one by one
    keys=sys.maxsize,
    is_skimmed=True,
)

T = TypeVar("T", bound=msgspec.Struct)


class WordingQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A request to be worded. Messages, tools and fields are JSON, not decoded by the parent."""

    wire: str
    provider: str
    settings: dict[str, Any]
    messages: list[msgspec.Raw]
    tools: list[msgspec.Raw]
    tool_choice: Any
    params: dict[str, msgspec.Raw]
    stream: bool
    deferred: DeferredTools | None
    place: dict[str, Any]
    """Further arguments of the wire's own `word`."""


class WordingError(msgspec.Struct, frozen=True):
    """Why a request could not be worded."""

    status: int
    message: str
    type: str
    param: str | None
    code: str | None
    detail: str | None
    retryable: bool
    again: bool

    @classmethod
    def of(cls, error: ChatError) -> "WordingError":
        again = False
        if isinstance(error, UpstreamError):
            again = error.again
        return cls(
            error.status, error.message, error.type, error.param, error.code, error.detail, error.retryable, again
        )

    def raised(self) -> ChatError:
        """Return the error as it was raised in the child."""
        return UpstreamError(
            self.status,
            self.message,
            again=self.again,
            elsewhere=self.retryable,
            type=self.type,
            param=self.param,
            code=self.code,
            detail=self.detail,
        )


class WordingAnswer(msgspec.Struct, frozen=True):
    worded: msgspec.Raw = msgspec.Raw(b"null")
    error: WordingError | None = None


_read_answer = json_reader(WordingAnswer)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Words the requests of one entry in a child process."""

    parsers: ParserPool
    model: str
    provider: str
    settings: LiteLLMSettings

    async def word(self, wire: str, request: ModelRequest, answer: type[T], **place: Any) -> T:
        """Word a request by the `word` of a wire's module; `place` are its further arguments. Raises `ChatError`."""
        question = WordingQuestion(
            wire=wire,
            provider=self.provider,
            settings=shaping(self.settings.arguments),
            messages=[_as_json(message) for message in request.messages],
            tools=[_as_json(tool) for tool in request.tools],
            tool_choice=request.tool_choice,
            params={name: _as_json(value) for name, value in request.params.items()},
            stream=request.stream,
            deferred=request.deferred,
            place=place,
        )
        try:
            payload = Untrusted(msgspec.json.encode(question), TO_WORD)
            worded = await self.parsers.run(WORD_REQUEST, payload, f"request to {self.model}")
            result = _read_answer(await open_in_slices(worded))
            refusal = result.error
            if refusal is None:
                return json_reader(answer)(result.worded)
        except ParserFailed as failure:
            raise _refusal(failure) from None
        except READ_ERRORS as error:
            raise _refusal(ParserFailed(Reason.GARBAGE, type(error).__name__)) from None
        raise refusal.raised()


def shaping(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's settings that shape the bodies of its requests: none says where or as whom."""
    return {name: value for name, value in arguments.items() if name not in NOT_SHAPING}


def _as_json(value: Any) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        return value
    return msgspec.Raw(msgspec.json.encode(value))


def _refusal(failure: ParserFailed) -> ChatError:
    if failure.reason in (Reason.BUSY, Reason.NOT_STARTED):
        return ChatError(
            503,
            "The server is busy with other long requests. Try again later.",
            type="server_error",
            code="over_capacity",
            retry_after=1.0,
            detail=str(failure),
        )
    return ChatError(
        400,
        f"The request cannot be put into the words of this model's provider: {failure}.",
        code="request_not_worded",
        detail=failure.detail,
    )
