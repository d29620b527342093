"""What was said in a run: masked and cut where it may be written, kept as it came where it stays in memory."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from sys import getsizeof
from typing import Any, Final

import msgspec

from callgate.recorder.ended_run import EndedRun, ended_run
from callgate.recorder.events import Mask
from callgate.recorder.stored_event import StoredEvent, decode_events
from callgate.recorder.turn_texts import MASKED_BEYOND
from callgate.records.policy import RecordPolicy
from callgate.records.row import RECORDED_TEXT, Kept, RunRow, wire_turn
from callgate.untrusted.doors import TooMuch, open_text
from callgate.untrusted.messagepack import pack_written_here
from callgate.untrusted.readers import json_reader, read_shape, read_value

QUESTION_CHARACTERS: Final = 200
"""The kept length of the question in a list of runs."""


class UnwrittenRequest(msgspec.Struct, frozen=True):
    """A request for a replay whose parts are the client's own bytes: its text is made when somebody looks, as few requests are looked
    at."""

    body: Callable[[], Mapping[str, Any]]
    bytes: int
    """About how long the text is."""

    def text(self) -> str:
        return written_request(self.body())

    def detached(self) -> "UnwrittenRequest":
        """Return the same without the rest of the client's body, of which it may be a small part."""
        fields = {name: _detached(value) for name, value in self.body().items()}
        return UnwrittenRequest(partial(dict, fields), self.bytes)

    def question_text(self) -> str:
        """Return what `question_in` finds in its text, without writing that."""
        try:
            return _question_of(_read_messages(self.body()["messages"]))
        except msgspec.DecodeError:
            return ""


def _detached(value: Any) -> Any:
    """Return a part of a request with bytes of its own."""
    if type(value) is msgspec.Raw:
        return value.copy()
    if isinstance(value, list | tuple):
        return [_detached(item) for item in value]
    return value


def written_request(body: Mapping[str, Any]) -> str:
    """Return the text of a request for a replay."""
    return msgspec.json.encode(body).decode(errors="replace")


class PrivateTexts(msgspec.Struct, gc=False, kw_only=True):
    """The texts of a run that are kept in memory alone, for its owner. Secrets in them are masked each time that they are shown, and
    nothing reads them otherwise; they are never written."""

    events: bytes = b""
    """Those of the run, where they tell more to whoever may see its texts."""
    texts: Mapping[str, str]
    """All but that of an unwritten request."""
    texts_bytes: int
    """How many they take in memory."""
    request: UnwrittenRequest | None = None
    policy: RecordPolicy
    mask: Mask
    """Masks also what was a secret only as long as the request ran."""
    cut: Sequence[str] = ()
    """The texts that were cut when the run ended."""
    question_text: str | None = None
    """The beginning of the question, once the text that it stands in is gone."""
    is_dropped: bool = False
    """True once the texts were dropped for newer ones."""

    def weight(self) -> int:
        """Return about how many bytes it takes in memory."""
        return len(self.events) + self.texts_bytes + len(self.question_text or "")

    def question(self) -> str:
        """Return the masked beginning of the user's last message with text; empty if there is none."""
        return shown_question(self._question_text(), self.mask)

    def _question_text(self) -> str:
        if self.question_text is not None:
            return self.question_text
        if self.request is not None:
            return self.request.question_text()
        return question_in(self.texts)

    def all_texts(self) -> Mapping[str, str]:
        """Return the texts as they came."""
        if self.request is None:
            return self.texts
        return {"request": self.request.text(), **self.texts}

    def shown(self, row: RunRow, events: bytes) -> EndedRun:
        """Return the run as its owner may see it, masked. `row` and `events`: what everybody sees."""
        row = msgspec.structs.replace(row, question=self.question())
        if self.is_dropped:
            row.kept = Kept.AGED_OUT
            return EndedRun(row, events, b"")
        all_events = decode_events(pack_written_here(self.events or events))
        return with_texts(row, all_events, self.all_texts(), self.policy, self.mask, self.cut)

    def cut_now(self) -> "PrivateTexts":
        """Return them masked and cut, as they take least memory. What is shown of them is masked again."""
        assert self.policy.content_bytes is not None, "this run keeps texts"
        texts = self.all_texts()
        content, cut = kept_texts(texts, self.policy.content_bytes, self.mask)
        size = weight_of_texts(content)
        return msgspec.structs.replace(
            self, texts=content, request=None, texts_bytes=size, cut=cut, question_text=question_in(texts)
        )

    def dropped(self) -> "PrivateTexts":
        """Return what stays when they are dropped: the question."""
        return msgspec.structs.replace(
            self,
            events=b"",
            texts={},
            request=None,
            texts_bytes=0,
            cut=(),
            question_text=self._question_text(),
            is_dropped=True,
        )


def with_texts(
    row: RunRow,
    events: Sequence[StoredEvent],
    texts: Mapping[str, str],
    policy: RecordPolicy,
    mask: Mask,
    cut_before: Sequence[str] = (),
) -> EndedRun:
    """Encode a run with its texts, masked and cut. `row` is told what is kept of them; `cut_before`: the texts that were
    cut already."""
    assert policy.content_bytes is not None, "this run keeps texts"
    content, newly_cut = kept_texts(texts, policy.content_bytes, mask)
    cut = list(dict.fromkeys((*cut_before, *newly_cut)))
    row.kept = Kept.MEMORY if policy.private_to else Kept.CONTENT
    if any(wire_turn(part) is None for part in cut):
        row.kept = Kept.CUT
    if cut:
        last = 0.0
        if events:
            last = events[-1][1]
        events = [*events, ("content_cut", last, 0, None, {"parts": cut})]
    if policy.wire == "on_error" and not row.is_odd:
        content = {part: text for part, text in content.items() if wire_turn(part) is None}
    ended = ended_run(row, events, content)
    ended.has_wire = any(wire_turn(part) is not None for part in content)
    return ended


def kept_texts(texts: Mapping[str, str], most: int, mask: Mask) -> tuple[dict[str, str], list[str]]:
    """Mask each text and cut it to `most` bytes. Return the texts, and the names of those that were cut."""
    content: dict[str, str] = {}
    cut: list[str] = []
    for part, text in texts.items():
        # Masked before it is cut, or the beginning of a secret would stay. Text far beyond the cut is not masked, to save time.
        encoded = mask(text[: most + MASKED_BEYOND]).encode(errors="replace")
        if len(text) > most + MASKED_BEYOND or len(encoded) > most:
            cut.append(part)
        content[part] = encoded[:most].decode(errors="ignore")
    return content, cut


def weight_of_texts(texts: Mapping[str, str]) -> int:
    """Return how many bytes texts take in memory."""
    return sum(map(getsizeof, texts.values()))


def question_in(texts: Mapping[str, str]) -> str:
    """Return the beginning of the user's last message with text, unmasked, with as much behind it as a secret may be long; empty if
    there is none."""
    try:
        request = read_shape(open_text(texts.get("request", "{}"), RECORDED_TEXT), _RequestText)
        return _question_of(request.messages)
    except (TooMuch, msgspec.DecodeError):
        return ""


def _question_of(messages: "Sequence[_MessageText]") -> str:
    for message in reversed(messages):
        if message.role == "user" and (text := _text_in(read_value(message.content))):
            return text[: QUESTION_CHARACTERS + MASKED_BEYOND]
    return ""


def shown_question(question_text: str, mask: Mask) -> str:
    """Return the beginning of a question, masked before it is cut."""
    return mask(question_text)[:QUESTION_CHARACTERS].strip()


def _text_in(content: Any) -> str:
    """Return the text of a message: all of it, or the last of its parts that is text, which clients write behind what they add."""
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        return ""
    for part in reversed(content):
        if isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"].strip():
            return str(part["text"]).strip()
    return ""


class _MessageText(msgspec.Struct):
    role: Any = None
    content: msgspec.Raw = msgspec.Raw(b"null")
    """Undecoded: of a long conversation one is read."""


class _RequestText(msgspec.Struct):
    messages: list[_MessageText] = []


_read_messages: Final = json_reader(list[_MessageText])
