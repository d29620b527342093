"""The outcome of a call: a result or a failure. The model is sent either."""

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, final

import msgspec

from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import msgpack_reader


class FailureKind(StrEnum):
    RAISED = "raised"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """We would not: policy, address check, approval denied, a queue that is full."""
    UNAVAILABLE = "unavailable"
    """The tool's server cannot be reached."""
    UNKNOWN = "unknown"
    """It was started and how it ended is not known."""
    NOT_RUN = "not_run"
    """Broken, or over a limit: it was never started."""


@dataclass(frozen=True, slots=True, init=False)
class Image:
    """An image that a tool returns, alone or in a list with text: `Image(png_bytes, "image/png")`."""

    data: str
    """Base64 without a prefix."""
    mime_type: str

    def __init__(self, data: bytes | str, mime_type: str) -> None:
        """Takes the image's bytes, or base64 text as it is."""
        object.__setattr__(self, "data", data if isinstance(data, str) else base64.b64encode(data).decode("ascii"))
        object.__setattr__(self, "mime_type", mime_type)

    def size(self) -> int:
        """Return the bytes of the image, decoded."""
        return len(self.data) * 3 // 4 - self.data[-2:].count("=")


class File(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A sound or a resource that a tool returns beside its text, for clients that take more than text and images."""

    kind: Literal["audio", "resource", "link"]
    mime_type: str = ""
    data: str = ""
    """Base64; empty where it is a text or a link."""
    text: str | None = None
    uri: str = ""
    name: str = ""


class ResultFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What there is to say of a result beside its text."""

    searched: str = ""
    """For a search of tools: `found` or `nothing`."""
    found_tools: tuple[str, ...] = ()
    """The tools whose schemas it gave."""
    findings: tuple[str, ...] = ()
    """What was odd about the tool's answer."""
    selected_from: int = 0
    """Bytes of the text that it was selected from; 0 where it is whole."""
    nano: int = 0
    """What the call cost, in billionths of a dollar."""
    cache: str = ""
    """Where it is from, for a tool whose results are kept: `hit`, `shared` with an equal call at the same time, or `miss`."""
    cached_seconds: float = 0.0
    """Its age."""
    cached_of: str = ""
    """The call that it is of."""

    def shown(self) -> dict[str, Any]:
        """Return those that stand beside the outcome of a call."""
        facts: dict[str, Any] = {}
        if self.findings:
            facts["findings"] = list(self.findings)
        if self.selected_from:
            facts["selected_from"] = self.selected_from
        if self.nano:
            facts["price"] = self.nano / 1_000_000_000
        if self.cached_of:
            facts |= {"cached_of": self.cached_of, "cached_seconds": self.cached_seconds}
        return facts


@final
class Returned(msgspec.Struct, frozen=True, gc=False):
    """The tool's answer, as text for the model, already bounded in size."""

    text: str
    images: tuple[Image, ...] = ()
    cut_bytes: int = 0
    """How many bytes of the tool's answer are not in `text`."""
    facts: ResultFacts | None = None
    structured: msgspec.Raw | None = None
    """The same for programs, as JSON, where the executor was asked for it and the tool gave it."""
    files: tuple[File, ...] = ()
    """What is neither text nor image, where the executor was asked for it; else the text describes it."""


@final
class Failed(msgspec.Struct, frozen=True, gc=False):
    """The tool did not answer. `text` tells the model what happened and what it can do."""

    text: str
    kind: FailureKind = FailureKind.RAISED
    decision: str = ""
    """`denied` or `expired` where it needed a person's approval and did not get it. For the operator, as the next two."""
    decided_by: str = ""
    reason: str = ""


Outcome: TypeAlias = Returned | Failed


def encode_outcome(outcome: Outcome) -> bytes:
    """Encode an outcome for another process."""
    fields: dict[str, Any] = {"text": outcome.text.encode(errors="replace").decode()}
    if isinstance(outcome, Failed):
        fields["kind"] = str(outcome.kind)
    else:
        fields |= {"images": [[image.data, image.mime_type] for image in outcome.images], "cut": outcome.cut_bytes}
    return msgspec.msgpack.encode(fields)


def decode_outcome(body: bytes) -> Outcome:
    """Decode an outcome of another process. Raises the errors of `READ_ERRORS`."""
    fields = _read_outcome(open_pack(body, OUTCOME))
    if fields.kind is not None:
        return Failed(fields.text, fields.kind)
    if fields.cut is None:
        raise msgspec.ValidationError("it is neither a result nor a failure")
    return Returned(fields.text, tuple(Image(data, mime_type) for data, mime_type in fields.images), fields.cut)


OUTCOME: Final = PackDoor(name="outcome of a call", bytes=256 * 1024 * 1024, values=20_000)
"""In the ledger, or from a worker."""


class _StoredOutcome(msgspec.Struct, frozen=True):
    text: str
    kind: FailureKind | None = None
    images: list[tuple[str, str]] = []
    cut: int | None = None


_read_outcome: Final = msgpack_reader(_StoredOutcome)
