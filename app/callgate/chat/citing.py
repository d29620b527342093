"""Adds to an answer where it refers to pages that results of declared tools named."""

from collections.abc import Collection
from typing import Any, Generic, Protocol, TypeVar

from callgate.api.choices import ForChoice
from callgate.calls.outcome import Returned
from callgate.chat.writers import Joiner
from callgate.conversation.errors import ChatError
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    ChatEnded,
    ChatEvent,
    ExtraField,
    ModelOutput,
    TextDelta,
)
from callgate.hosted.sources import NamedPage, citations, sources_in


class CitedChat:
    """What was said in one chat, and the pages that it may refer to."""

    def __init__(self, tools: Collection[str]) -> None:
        """`tools`: the names of those that stand for declared ones."""
        self._tools = tools
        self._sources: dict[str, NamedPage] = {}
        self._texts: dict[int, list[str]] = {}

    def take(self, event: ChatEvent) -> ModelOutput | None:
        """Return what is to be written before the end of a chat, if anything is."""
        match event:
            case ModelOutput():
                texts = [part.text for part in event.events if isinstance(part, TextDelta)]
                if texts:
                    self._texts.setdefault(event.turn, []).extend(texts)
            case Attempt() if event.reason:
                self._texts.pop(event.turn, None)
            case CallEnded() if event.call.name in self._tools and isinstance(event.outcome, Returned):
                self._sources |= {source.url: source for source in sources_in(event.outcome.text)}
            case ChatEnded():
                return self._annotations()
        return None

    def _annotations(self) -> ModelOutput | None:
        if not self._sources:
            return None
        joiner = Joiner()
        text = "".join(joiner.feed(turn, piece) for turn, pieces in self._texts.items() for piece in pieces)
        annotations = [
            {"type": "url_citation", "url_citation": citation.fields()} for citation in citations(text, self._sources)
        ]
        if not annotations:
            return None
        return ModelOutput(max(self._texts), [ExtraField("annotations", annotations)])


class Writer(Protocol):
    def write(self, event: Any, /) -> Any: ...


W = TypeVar("W", bound=Writer)


class _Citing(Generic[W]):
    """Tells a writer of citations before the end of each choice."""

    def __init__(self, inner: W, tools: Collection[str]) -> None:
        self._inner = inner
        self._tools = tools
        self._chats: dict[int, CitedChat] = {}

    def _cited(self, event: Any) -> Any:
        """Return an event with the citations that go before this one; None where there are none."""
        choice = 0
        inner = event
        if isinstance(event, ForChoice):
            choice = event.choice
            inner = event.event
        cited = self._chats.setdefault(choice, CitedChat(self._tools)).take(inner)
        if cited is None or inner is event:
            return cited
        return ForChoice(choice, cited)


class StreamInner(Writer, Protocol):
    def heartbeat(self) -> bytes: ...

    def error(self, error: ChatError) -> bytes: ...


class BodyInner(Writer, Protocol):
    def body(self) -> Any: ...


class CitingStream(_Citing[StreamInner]):
    """The writer of a stream."""

    def write(self, event: Any) -> bytes:
        written: bytes = b""
        if (cited := self._cited(event)) is not None:
            written = self._inner.write(cited)
        written += self._inner.write(event)
        return written

    def heartbeat(self) -> bytes:
        return self._inner.heartbeat()

    def error(self, error: ChatError) -> bytes:
        return self._inner.error(error)


class CitingBody(_Citing[BodyInner]):
    """The writer of a whole answer."""

    def write(self, event: Any) -> None:
        if (cited := self._cited(event)) is not None:
            self._inner.write(cited)
        self._inner.write(event)

    def body(self) -> Any:
        return self._inner.body()
