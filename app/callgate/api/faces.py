"""The protocol of a face: one API (Chat Completions, Responses, Messages) in which a conversation is requested and
answered."""

from collections.abc import Sequence
from typing import Protocol

from starlette.types import ASGIApp

from callgate.api.answers import BodyWriter, StreamWriter, Work
from callgate.api.conversation import Conversation
from callgate.api.middleware import RequestContext
from callgate.api.requests import ChatRequest
from callgate.config.schema import Config
from callgate.conversation.diagnosis import Diagnosis


class AnsweredElsewhere(Exception):
    """A request is in order, and is answered by something else than a conversation here."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__("answered elsewhere")
        self.app = app


class FaceExchange(Protocol):
    """One request of a face, and the writers of its answer."""

    @property
    def request(self) -> ChatRequest:
        """The question as the conversation understands it."""
        ...

    def work(self, conversation: Conversation) -> Work:
        """What answers it: the conversation's own work, or that and what has to be done before its last event goes out.
        Asked for before the writer."""
        ...

    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        """The writer of a whole answer. `diagnoses`: what is reported of each choice, if anything is to be."""
        ...

    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        """The writer of a streamed answer."""
        ...


class Face(Protocol):
    """One API."""

    @property
    def route(self) -> str:
        """The route under which its requests are counted."""
        ...

    async def read(self, body: bytes, context: RequestContext, config: Config) -> FaceExchange:
        """The request, or a `ChatError` that names what is wrong with it."""
        ...
