"""Keeps results that were too long, and offers the rest to the model page by page.

`ResultStore` keeps them for all requests, within bounds. `ResultPages` is the part of one conversation. `PagedToolbox` wraps
a toolbox, and offers the tool `read_more` when there is a result to read.
"""

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from callgate.calls.legal_names import RESERVED_PREFIX
from callgate.calls.offer import Offer, OfferedTool
from callgate.calls.outcome import Failed, FailureKind, Outcome, Returned
from callgate.calls.states import Call, ReadyCall
from callgate.conversation.ports import Begin, Message, Plan, Report, Toolbox, begin_at_once
from callgate.tools.registry import encoded
from callgate.tools.results import cut, size_of
from callgate.tools.schema import compile_schema

NAME = "read_more"
SECONDS = 900.0
"""How long a result is kept."""
MAX_BYTES = 64 * 1024 * 1024
MAX_KEPT = 1000
MAX_BYTES_OF_ONE = 4 * 1024 * 1024
MAX_NAMED = 64
"""Results of one history that are fetched from other processes; a client may send any number of ids."""
_ID = re.compile(rb"kept_[0-9a-f]{24}")
_NOTE_ROOM = 200
"""Bytes of a page for the line about the next page."""
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The id that the shortened result named."},
        "offset": {"type": "integer", "minimum": 0, "description": "The byte to read on from; 0 if left out."},
    },
    "required": ["id"],
}
"""Without keywords that some provider refuses."""
DESCRIPTION = "Reads on in a tool result that was too long to be shown whole."


@dataclass(frozen=True, slots=True)
class StoredResult:
    """One result, as far as it was read from the tool."""

    owner: str
    data: bytes
    unread: int
    """Bytes of the tool's answer that were not read."""
    until: float


class SharedResults(Protocol):
    """The results that several processes share. Does not raise; unreachable results are missing."""

    async def put(self, id: str, kept: bytes, seconds: float) -> None: ...

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

    async def save(self, ids: Iterable[str]) -> None:
        """Share results with other processes, before their ids are sent to the model."""
        if self.shared is None:
            return
        for id in ids:
            if (kept := self._kept.get(id)) is not None:
                await self.shared.put(id, _encode((kept.owner, kept.unread, kept.data)), SECONDS)

    async def fetch(self, owner: str, ids: Sequence[str]) -> None:
        """Fetch results that other processes keep for this owner."""
        missing = [id for id in ids if id not in self._kept]
        if self.shared is None or not missing:
            return
        for id, found in zip(missing, await self.shared.get(missing, SECONDS), strict=True):
            if found is not None:
                theirs, unread, data = _decode(found)
                if theirs == owner:
                    self._put(id, StoredResult(owner, data, unread, self._now() + SECONDS))

    def find(self, owner: str, id: str) -> StoredResult | None:
        self._tidy()
        kept = self._kept.get(id)
        return kept if kept is not None and kept.owner == owner else None

    @property
    def count(self) -> int:
        return len(self._kept)

    def _put(self, id: str, kept: StoredResult) -> None:
        self._drop(id)
        self._kept[id] = kept
        self._bytes += len(kept.data)
        self._tidy()

    def _tidy(self) -> None:
        while self._kept:
            id, oldest = next(iter(self._kept.items()))
            if oldest.until > self._now() and self._bytes <= self._max_bytes and len(self._kept) <= MAX_KEPT:
                return
            self._drop(id)

    def _drop(self, id: str) -> None:
        kept = self._kept.pop(id, None)
        if kept is not None:
            self._bytes -= len(kept.data)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, int, bytes]).decode


class ResultPages(msgspec.Struct, eq=False):
    """The kept results of one conversation of a caller."""

    _kept_results: ResultStore
    _owner: str
    _run_id: str
    ids: set[str] = set()
    name: str = NAME
    """The name of the `read_more` tool in this conversation."""

    def keep(self, whole: Returned, max_bytes: int) -> Returned:
        """Keep a result that is too long; return it shortened, with a note about the rest."""
        left = max_bytes - _NOTE_ROOM
        if left <= 0 or size_of(whole.text) <= max_bytes:  # no room for the note, or no rest
            short, missing = cut(whole.text, max_bytes, already_missing=whole.cut_bytes)
            return replace(whole, text=_sayable(short), cut_bytes=missing)
        short, missing = cut(whole.text, left, already_missing=whole.cut_bytes)
        id = self._kept_results.keep(self._owner, self._run_id, whole.text, whole.cut_bytes)
        self.ids.add(id)
        offset = size_of(_shared_start(whole.text, short))
        pointer = f'\n[The rest is kept for a while: {self.name} {{"id": "{id}", "offset": {offset}}} reads on.]'
        return replace(whole, text=_sayable(short) + pointer, cut_bytes=missing)

    async def save(self) -> None:
        await self._kept_results.save(self.ids)

    async def recall(self, messages: Sequence[Message]) -> None:
        """Load the results of earlier requests of the conversation that its history names, also from other processes."""
        if not self._kept_results.count and self._kept_results.shared is None:
            return
        named: dict[str, None] = {}
        for message in messages:
            text = (
                bytes(message)
                if isinstance(message, msgspec.Raw)
                else str(message.get("content")).encode("utf-8", "replace")
            )
            named |= dict.fromkeys(map(bytes.decode, _ID.findall(text)))
        if named:
            await self._kept_results.fetch(self._owner, list(named)[:MAX_NAMED])
        self.ids.update(id for id in named if self._kept_results.find(self._owner, id) is not None)

    def __bool__(self) -> bool:
        return any(self._kept_results.find(self._owner, id) is not None for id in self.ids)

    def page(self, id: str, offset: int, max_bytes: int) -> Outcome:
        kept = self._kept_results.find(self._owner, id) if id in self.ids else None
        if kept is None:
            text = "This result is not kept any more, or the id is wrong. Call the tool that gave it again."
            return Failed(text, FailureKind.REFUSED)
        size = len(kept.data)
        if offset >= size:
            return Failed(f"There is nothing from byte {offset} on: {size} bytes are kept.", FailureKind.REFUSED)
        start = _whole_letter(kept.data, offset)
        end = _whole_letter(kept.data, min(size, start + max(max_bytes - _NOTE_ROOM, 4)))
        text = kept.data[start:end].decode("utf-8", "replace")
        return Returned(text + _rest(start, end, kept))


class PagedToolbox:
    """Wraps a toolbox, and offers `read_more` while there is something to read."""

    _offered: OfferedTool | None = None

    def __init__(self, inner: Toolbox, pages: ResultPages, page_bytes: int) -> None:
        self._inner, self._pages, self._page_bytes = inner, pages, page_bytes
        name = NAME
        while name in inner.offer:
            name = RESERVED_PREFIX + name
        pages.name = name

    @property
    def offer(self) -> Offer:
        tool = self._tool()
        return self._inner.offer if tool is None else {**self._inner.offer, tool.name: tool}

    @property
    def schemas(self) -> Sequence[msgspec.Raw]:
        if self._tool() is None:
            return self._inner.schemas
        return (*self._inner.schemas, encoded(self._pages.name, DESCRIPTION, PARAMETERS))

    def plan(self, calls: Sequence[Call]) -> Plan:
        tool = self._tool()
        own = [call for call in calls if isinstance(call, ReadyCall) and call.name == tool.name] if tool else []
        if not own:
            return self._inner.plan(calls)
        plan = self._inner.plan([call for call in calls if call not in own])
        places = {id(call): at for at, call in enumerate(calls)}
        return replace(plan, ours=tuple(sorted((*plan.ours, *own), key=lambda call: places.get(id(call), len(places)))))

    def is_clients(self, name: str | None) -> bool:
        return self._inner.is_clients(name)

    def writes(self, call: ReadyCall) -> bool:
        return not self._is_own(call.name) and self._inner.writes(call)

    def is_ordered(self, call: ReadyCall) -> bool:
        return not self._is_own(call.name) and self._inner.is_ordered(call)

    async def run(self, call: ReadyCall, report: Report, begin: Begin = begin_at_once) -> Outcome:
        if not self._is_own(call.name):
            before = len(self._pages.ids)
            outcome = await self._inner.run(call, report, begin)
            if len(self._pages.ids) != before:
                await self._pages.save()
            self._tool()  # made now, because the result may have expired when it is called
            return outcome
        await begin()
        return self._pages.page(call.arguments["id"], call.arguments.get("offset", 0), self._page_bytes)

    def _is_own(self, name: str | None) -> bool:
        return (tool := self._tool()) is not None and name == tool.name

    def _tool(self) -> OfferedTool | None:
        """Return the tool. Once offered it stays known, so that a late call gets a proper answer."""
        if (pages := self._pages).ids and self._offered is None and pages:
            self._offered = OfferedTool(pages.name, PARAMETERS, _check)
        return self._offered


_check = compile_schema(PARAMETERS)


def _shared_start(text: str, other: str) -> str:
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(other[:middle]):
            low = middle
        else:
            high = middle - 1
    return text[:low]


def _sayable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, by question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _rest(start: int, end: int, kept: StoredResult) -> str:
    size = len(kept.data)
    if end < size:
        return f"\n[Bytes {start} to {end} of {size}; read on with offset {end}.]"
    unread = f" The answer went on for at least {kept.unread} bytes more, which were never read." if kept.unread else ""
    return f"\n[Bytes {start} to {end} of {size}: this is the end.{unread}]"


def _whole_letter(data: bytes, at: int) -> int:
    """Return the nearest place before `at` where a UTF-8 character begins."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at
