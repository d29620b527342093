"""The protocol of a face: one API for conversations (Chat Completions, Responses, Messages)."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec
from starlette.types import Receive, Send

from callgate.api.answers import AnswerKeeper, BodyWriter, StreamWriter
from callgate.api.chat_request import ChatRequest
from callgate.api.conversation import Conversation, Replay
from callgate.api.middleware import RequestContext
from callgate.api.run_ports import LiveAnswer, follow
from callgate.config.schema.whole import Config
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.errors import ChatError
from callgate.runtime.route import Route
from callgate.untrusted.doors import Opened


class Detached(msgspec.Struct, frozen=True):
    """How a request is answered whose run goes on without its client."""

    deliver: Callable[[LiveAnswer, Receive, Send], Awaitable[None]] = follow
    """Sends what the client gets meanwhile; the answer of the run itself, unless something else is given."""
    run_body: bytes | None = None
    """The body that its run has, where that is not the one that came: two bodies may ask for the same run."""
    needs_ledger: bool = False
    """It is refused where its run would end with the process."""


ATTACHED: Final = Detached()
"""How a request with an `Idempotency-Key` is answered, whose client waits for it."""


class FaceExchange(ABC):
    """One request of a face, and the writers of its answer."""

    request: ChatRequest
    detached: Detached | None = None
    """Set where its run goes on without its client."""
    replay: Replay | None = None
    """Set where a recorded run is replayed."""

    def request_for(self, route: Route, warn: Callable[[str], None]) -> ChatRequest:
        """Return the request as the model of a route takes it. `warn` is called with what the client has to be told of it, in
        plain ASCII. Called only if the face adapts requests."""
        return self.request

    @abstractmethod
    def whole(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> BodyWriter:
        """Return the writer of a whole answer. `diagnoses`: the reports on the choices, if they are to be shown."""

    @abstractmethod
    def streamed(self, conversation: Conversation, began: int, diagnoses: Sequence[Diagnosis] | None) -> StreamWriter:
        """Return the writer of a streamed answer."""

    def keeper(self, conversation: Conversation) -> AnswerKeeper | None:
        """Return what stores the answer before its end is sent, if anything does. Called after the writer was made, and only if
        the face keeps answers."""
        return None

    @abstractmethod
    def stream_end(self, error: ChatError, written: bytes) -> bytes:
        """Return the end of a stream of another process that is not carried on here. `written`: what the client has of it."""


class Face(Protocol):
    """One API."""

    @property
    def route(self) -> str:
        """The route of its requests, for metrics."""
        ...

    @property
    def adapts_requests(self) -> bool:
        """Its requests may differ from model to model, or need warnings."""
        ...

    @property
    def keeps_answers(self) -> bool:
        """Its answers may be stored, for requests that continue them."""
        ...

    @property
    def stores_whole_stream(self) -> bool:
        """The streamed answer of a durable run is also stored in one piece."""
        ...

    async def read(self, body: Opened, context: RequestContext, config: Config) -> FaceExchange:
        """Read a request. Raises `ChatError` that names what is wrong with it."""
        ...
