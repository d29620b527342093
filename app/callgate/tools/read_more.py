"""Keeps results that were too long, and gives the rest to the model page by page, by the tool `read_more`.

`ResultStore` keeps them for all requests, within bounds. `ResultPages` is the part of one conversation. The tool is offered
wherever tools of ours are, from the first turn on: a prompt that changed in the middle of a chat would be none that a provider
has cached.
"""

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from callgate.calls.offer import OfferedTool
from callgate.calls.outcome import Failed, FailureKind, Image, Outcome, Returned
from callgate.conversation.listeners import NOTHING
from callgate.conversation.ports import Message
from callgate.conversation.readable_content import IMAGE_TYPES
from callgate.tools.own_tool import OwnTool, free_name
from callgate.tools.registry import encoded
from callgate.tools.results import MAX_IMAGE_BYTES, cut, size_of
from callgate.tools.schema import compile_schema
from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import READ_ERRORS, msgpack_reader

NAME = "read_more"
SECONDS = 900.0
"""How long a result is kept."""
MAX_BYTES = 64 * 1024 * 1024
MAX_KEPT = 1000
MAX_BYTES_OF_ONE = 4 * 1024 * 1024
MAX_BYTES_OF_IMAGE = MAX_IMAGE_BYTES * 4 // 3 + 4
"""Of an image, which is kept in base64."""
ADDRESS = "callgate://kept/"
"""Stands before the id of an image that was cleared out of a prompt."""
MAX_NAMED = 64
"""Results of one history that are fetched from other processes; a client may send any number of ids."""
SHARED_RESULT = PackDoor(name="a result of another process", bytes=MAX_BYTES_OF_IMAGE + 64 * 1024, values=5, depth=1)
_ID = re.compile(rb"kept_[0-9a-f]{24}")
_POINTER = re.compile(r'\n\[The rest is kept for a while: \w+ \{"id": "(?P<id>kept_[0-9a-f]{24})"[^\n]*\]\Z')
_NOTE_ROOM = 200
"""Bytes of a page for the line about the next page."""
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "offset": {"type": "integer", "minimum": 0}},
    "required": ["id"],
}
"""Without keywords that some provider refuses, and without descriptions: a result that was cut says how the rest is read."""
DESCRIPTION = "Reads on in a tool result that was cut, by the id that it names."

log = structlog.get_logger("callgate.tools")


def read_more_apart_from(taken_names: Container[str]) -> OwnTool:
    """Return the tool, with another name where a tool of the same request has its own."""
    return _named(free_name(NAME, taken_names))


@lru_cache(maxsize=8)
def _named(name: str) -> OwnTool:
    offered = OfferedTool(name, PARAMETERS, compile_schema(PARAMETERS), may_run_again=True)
    return OwnTool(name=name, offered=offered, definition=encoded(name, DESCRIPTION, PARAMETERS))


def pointer_in(text: str) -> str | None:
    """Return the id that a result which was cut names, by which the rest is read."""
    pointer = _POINTER.search(text)
    if pointer is None:
        return None
    return pointer["id"]


class StoredResult(msgspec.Struct, frozen=True):
    """One result, as far as it was read from the tool."""

    owner: str
    data: bytes
    unread: int
    """Bytes of the tool's answer that were not read."""
    until: float
    mime_type: str = ""
    """Of an image, whose data is base64."""


class SharedResults(Protocol):
    """The results that several processes share. Does not raise; unreachable results are missing."""

    async def put(self, id: str, encoded_result: bytes, seconds: float) -> None: ...

    async def get(self, ids: Sequence[str], seconds: float) -> Sequence[bytes | None]: ...


class ResultStore:
    """The kept results; the oldest are dropped first when there are too many."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, now: Callable[[], float] = time.monotonic) -> None:
        self.shared: SharedResults | None = None
        """Set where other processes may be asked for further pages."""
        self._max_bytes = max_bytes
        self._now = now
        self._kept: OrderedDict[str, StoredResult] = OrderedDict()
        self._bytes = 0

    def keep(self, owner: str, run_id: str, text: str, unread: int) -> str:
        """Keep a result and return its id. The same result of the same run has the same id, so that repetitions are noticed."""
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_BYTES_OF_ONE:
            unread += len(data) - MAX_BYTES_OF_ONE
            data = data[:MAX_BYTES_OF_ONE].decode("utf-8", "ignore").encode()
        owned_by = f"{owner}\0{run_id}\0".encode("utf-8", "replace")
        id = f"kept_{hashlib.sha256(owned_by + data).hexdigest()[:24]}"
        self._put(id, StoredResult(owner, data, unread, self._now() + SECONDS))
        return id

    def keep_image(self, owner: str, data: str, mime_type: str) -> str:
        """Keep an image and return its id, which is the same for equal images of a caller, so that they are kept once."""
        digest = hashlib.sha256(f"\0\0{owner}\0{mime_type}\0{data}".encode("utf-8", "replace"))
        id = f"kept_{digest.hexdigest()[:24]}"
        self._put(id, StoredResult(owner, data.encode("utf-8", "replace"), 0, self._now() + SECONDS, mime_type))
        return id

    async def save(self, ids: Iterable[str]) -> None:
        """Share results with other processes, before their ids are sent to the model."""
        if self.shared is None:
            return
        for id in ids:
            if (result := self._kept.get(id)) is not None:
                await self.shared.put(id, _encode(_shared_form(result)), SECONDS)

    async def fetch(self, owner: str, ids: Sequence[str]) -> None:
        """Fetch results that other processes keep for this owner."""
        missing = [id for id in ids if id not in self._kept]
        if self.shared is None or not missing:
            return
        for id, encoded_result in zip(missing, await self.shared.get(missing, SECONDS), strict=True):
            if encoded_result is not None:
                self._take(owner, id, encoded_result)

    def _take(self, owner: str, id: str, encoded_result: bytes) -> None:
        """Keep a result of another process, if it is this owner's."""
        try:
            shared = _decode(open_pack(encoded_result, SHARED_RESULT))
        except READ_ERRORS as error:
            log.warning("result_not_found", results=[id], error=f"it cannot be read: {error}")
            return
        if shared.mime_type and not (shared.mime_type in IMAGE_TYPES and shared.data.isascii()):
            log.warning("result_not_found", results=[id], error="it is no image that can be shown")
        elif shared.owner == owner:
            self._put(id, StoredResult(owner, shared.data, shared.unread, self._now() + SECONDS, shared.mime_type))

    def find(self, owner: str, id: str) -> StoredResult | None:
        self._tidy()
        result = self._kept.get(id)
        if result is not None and result.owner == owner:
            return result
        return None

    def count(self) -> int:
        return len(self._kept)

    def _put(self, id: str, result: StoredResult) -> None:
        self._drop(id)
        self._kept[id] = result
        self._bytes += len(result.data)
        self._tidy()

    def _tidy(self) -> None:
        while self._kept:
            id, oldest = next(iter(self._kept.items()))
            if oldest.until > self._now() and self._bytes <= self._max_bytes and len(self._kept) <= MAX_KEPT:
                return
            self._drop(id)

    def _drop(self, id: str) -> None:
        result = self._kept.pop(id, None)
        if result is not None:
            self._bytes -= len(result.data)


class _Shared(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A result as other processes read it. Those of an older version know no type."""

    owner: str
    unread: int
    data: bytes
    mime_type: str = ""


def _shared_form(result: StoredResult) -> Any:
    if result.mime_type:
        return _Shared(result.owner, result.unread, result.data, result.mime_type)
    return result.owner, result.unread, result.data


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_reader(_Shared)


class ResultPages(msgspec.Struct, eq=False):
    """The kept results of one conversation of a caller."""

    store: ResultStore
    owner: str
    run_id: str
    page_bytes: int
    ids: set[str] = set()
    """The results that this conversation may read on in."""
    unsaved: list[str] = []
    """Those that other processes do not know yet."""

    def keep(self, whole: Returned, max_bytes: int, tool_name: str) -> Returned:
        """Keep a result that is too long; return it shortened, with a note how the rest is read by the tool of this name."""
        room = max_bytes - _NOTE_ROOM
        if room <= 0 or size_of(whole.text) <= max_bytes:  # no room for the note, or no rest
            short, missing = cut(whole.text, max_bytes, already_missing=whole.cut_bytes)
            return replace(whole, text=_sayable(short), cut_bytes=missing)
        short, missing = cut(whole.text, room, already_missing=whole.cut_bytes)
        id = self.store.keep(self.owner, self.run_id, whole.text, whole.cut_bytes)
        if id not in self.ids:
            self.ids.add(id)
            self.unsaved.append(id)
        offset = size_of(_shared_start(whole.text, short))
        pointer = f'\n[The rest is kept for a while: {tool_name} {{"id": "{id}", "offset": {offset}}} reads on.]'
        return replace(whole, text=_sayable(short) + pointer, cut_bytes=missing)

    def put_away(self, call_id: str, text: str, tool_name: str) -> str | None:
        """Keep a result that is cleared out of a prompt; return the line that stands for it, which says how it is read again by the
        tool of this name. None where it cannot be read whole."""
        if (pointer := _POINTER.search(text)) is not None and pointer["id"] in self.ids:
            id = pointer["id"]  # it was cut: all of it is kept already
        else:
            if size_of(text) > MAX_BYTES_OF_ONE:
                return None
            # By the call and not by the run: in the next request of the conversation the line is the same.
            id = self.store.keep(self.owner, call_id, text, 0)
            self.ids.add(id)
            self.unsaved.append(id)
        return f'[This result was cleared to make room. {tool_name} {{"id": "{id}", "offset": 0}} reads it again.]'

    def put_away_image(self, image: Image, tool_name: str) -> str | None:
        """Keep an image that is cleared out of a prompt; return the line that stands for it, which says how the tool of this name shows
        it again. None where it is too large to be kept."""
        if len(image.data) > MAX_BYTES_OF_IMAGE:
            return None
        id = self.store.keep_image(self.owner, image.data, image.mime_type)
        self.ids.add(id)
        self.unsaved.append(id)
        kept = f"{ADDRESS}{id}: {image.mime_type}, {image.size()} bytes"
        return f'[This image was cleared to make room. {kept}; {tool_name} {{"id": "{id}"}} shows it again.]'

    async def save(self) -> None:
        """Share what is unsaved with other processes, before its ids are sent to the model."""
        ids = self.unsaved
        self.unsaved = []
        await self.store.save(ids)

    def recall(self, messages: Sequence[Message]) -> Awaitable[None]:
        """Load the results of earlier requests of the conversation that its history names, also from other processes."""
        if not self.store.count() and self.store.shared is None:
            return NOTHING
        return self._recalled(messages)

    async def _recalled(self, messages: Sequence[Message]) -> None:
        ids: dict[str, None] = {}
        for message in messages:
            ids |= dict.fromkeys(map(bytes.decode, _ID.findall(_text_of(message))))
        if ids:
            await self.store.fetch(self.owner, list(ids)[:MAX_NAMED])
        self.ids.update(id for id in ids if self.store.find(self.owner, id) is not None)

    def page(self, id: str, offset: int) -> Outcome:
        """Return the next part of a result."""
        result = None
        id = id.removeprefix(ADDRESS)
        if id in self.ids:
            result = self.store.find(self.owner, id)
        if result is None:
            text = "This result is not kept any more, or the id is wrong. Call the tool that gave it again."
            return Failed(text, FailureKind.REFUSED)
        if result.mime_type:
            return Returned("", images=(Image(result.data.decode(), result.mime_type),))
        size = len(result.data)
        if offset >= size:
            return Failed(f"There is nothing from byte {offset} on: {size} bytes are kept.", FailureKind.REFUSED)
        start = _whole_letter(result.data, offset)
        end = _whole_letter(result.data, min(size, start + max(self.page_bytes - _NOTE_ROOM, 4)))
        text = result.data[start:end].decode("utf-8", "replace")
        return Returned(text + _rest(start, end, result))


def _text_of(message: Message) -> bytes:
    if isinstance(message, msgspec.Raw):
        return bytes(message)
    return str(message.get("content")).encode("utf-8", "replace")


def _shared_start(text: str, other: str) -> str:
    low = 0
    high = min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(other[:middle]):
            low = middle
        else:
            high = middle - 1
    return text[:low]


def _sayable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, by question marks."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


def _rest(start: int, end: int, result: StoredResult) -> str:
    size = len(result.data)
    if end < size:
        return f"\n[Bytes {start} to {end} of {size}; read on with offset {end}.]"
    if result.unread:
        unread = f" The answer went on for at least {result.unread} bytes more, which were never read."
    else:
        unread = ""
    return f"\n[Bytes {start} to {end} of {size}: this is the end.{unread}]"


def _whole_letter(data: bytes, at: int) -> int:
    """Return the nearest place before `at` where a UTF-8 character begins."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at
