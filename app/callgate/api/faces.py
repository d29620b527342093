"""The protocol of a face: one API for conversations (Chat Completions, Responses, Messages)."""

from collections.abc import Sequence
from typing import Protocol

from starlette.types import ASGIApp

from callgate.api.answers import BodyWriter, StreamWriter, Work
from callgate.api.conversation import Conversation
from callgate.api.middleware import RequestContext
from callgate.api.requests import ChatRequest
from callgate.config.schema import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError


class AnsweredElsewhere(Exception):
    """Raised for a valid request that another ASGI application answers."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__("answered elsewhere")
        self.app = app


class FaceExchange(Protocol):
    """One request of a face, and the writers of its answer."""

    @property
    def request(self) -> ChatRequest:
        """The request to the conversation."""
        ...

    def work(self, conversation: Conversation) -> Work:
        """Return the work that answers it: the conversation's, and what has to be done before its last event is sent. Called
        before the writer is made."""
        ...

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        """Return the writer of a whole answer. `diagnoses`: the reports on the choices, if they are to be shown."""
        ...

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        """Return the writer of a streamed answer."""
        ...

    def stream_end(self, error: ChatError, sent: bytes) -> bytes:
        """Return the end of a stream of another process that is not carried on here. `sent`: what the client has of it."""
        ...


class Face(Protocol):
    """One API."""

    @property
    def route(self) -> str:
        """The route of its requests, for metrics."""
        ...

    async def read(self, body: bytes, context: RequestContext, config: Config) -> FaceExchange:
        """Read a request. Raises `ChatError` that names what is wrong with it."""
        ...
