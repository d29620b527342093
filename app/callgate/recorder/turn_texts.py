"""Keeps what a model is sent and says in each turn, for runs with stored texts."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from callgate.conversation.ports import Message, ModelRequest, Passthrough

MASKED_BEYOND: Final = 16 * 1024
"""Characters beyond the kept ones that are searched for secrets: no secret is longer."""
LISTS_KNOWN: Final = 16
"""The lists of tools whose text is known, so that it is not made for each run that is offered the same list."""
KNOWN_CHARACTERS: Final = 256 * 1024
"""Longer texts of tools are made for each run."""

encode = msgspec.json.Encoder(enc_hook=str).encode


class KeptTurns(msgspec.Struct, eq=False, kw_only=True):
    """Keeps the new messages of each turn, and the text and reasoning of its answer.

    The parts: `tools` (the offered definitions), `turn.N.asked` (messages that the client did not send), `turn.N.history` (all
    messages, if they do not continue the previous ones), `turn.N.text`, `turn.N.reasoning`, and `wire.N.M`: the raw body of the Mth
    response of a provider in turn N.
    """

    _texts: dict[str, str]
    """Where they are kept, by the names of their parts."""
    _prefix: str
    """Stands before these names."""
    _known: Sequence[Message]
    """The messages so far; at first those of the client's request."""
    _most: int
    """How many bytes of a raw body are kept."""
    _wire: bool = False
    _turn: int = -1
    _answers: int = 0
    _bodies: list[bytearray] = []
    _last: ModelRequest | Passthrough | None = None
    _is_again: bool = False

    def begin(self, request: ModelRequest | Passthrough) -> ModelRequest | Passthrough:
        """Keep a request that is about to be sent; return it as it is sent."""
        self._is_again = request is self._last  # a retry in the same turn
        if not self._is_again:
            self._turn += 1
            self._answers = 0
            self._last = request
            if type(request) is ModelRequest:
                self._keep_request(request)
        if self._wire:
            return replace(request, record_body=self._begin_body)
        return request

    def end(self, text: str, reasoning: str) -> None:
        """Keep what an answer said, and the bodies that it came in. It replaces one that broke off."""
        turn = f"{self._prefix}turn.{self._turn}."
        if self._is_again:
            self._texts.pop(f"{turn}text", None)
            self._texts.pop(f"{turn}reasoning", None)
        if text:
            self._texts[f"{turn}text"] = text
        if reasoning:
            self._texts[f"{turn}reasoning"] = reasoning
        for body in self._bodies:
            if body:
                part = f"{self._prefix}wire.{self._turn}.{self._answers}"
                self._texts[part] = body.decode(errors="backslashreplace")
            self._answers += 1
        self._bodies = []

    def _begin_body(self) -> Callable[[bytes], None]:
        """Return the function that takes the body of a provider's response, which begins."""
        body = bytearray()
        self._bodies.append(body)

        def take(data: bytes) -> None:
            if len(body) <= self._most:
                body.extend(data)

        return take

    def _keep_request(self, request: ModelRequest) -> None:
        if self._turn == 0 and request.tools:
            self._texts[f"{self._prefix}tools"] = _tools_texts.text_of(request.tools)
        messages = request.messages
        if messages is self._known:  # as in most first turns
            return
        sent_before = len(self._known)
        is_longer = list(messages[:sent_before]) == list(self._known)
        self._known = messages
        if is_longer:
            part = f"{self._prefix}turn.{self._turn}.asked"
            new = messages[sent_before:]
        else:
            part = f"{self._prefix}turn.{self._turn}.history"
            new = messages
        if new:
            self._texts[part] = encode(new).decode(errors="replace")


class ToolsTexts:
    """The texts of lists of tools. Most runs are offered one of a few lists, which are objects that nobody changes."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Sequence[msgspec.Raw], str]] = {}
        """By the identity of the list, which stays its own as long as the list stands here."""
        self._last: Sequence[msgspec.Raw] = ()
        """The last list whose text was made: one that comes again is remembered. A list of a client's tools never does."""

    def text_of(self, tools: Sequence[msgspec.Raw]) -> str:
        """Return the text of a list."""
        entry = self._texts.get(id(tools))
        if entry is not None:
            return entry[1]
        text = encode(tools).decode()
        if tools is self._last and len(text) <= KNOWN_CHARACTERS:
            if len(self._texts) >= LISTS_KNOWN:
                del self._texts[next(iter(self._texts))]
            self._texts[id(tools)] = (tools, text)
        self._last = tools
        return text


_tools_texts: Final = ToolsTexts()


def part_of(choice: int, part: str) -> str:
    """Return the name of a text. It includes the choice from the second one on."""
    if choice:
        return f"choice.{choice}.{part}"
    return part
