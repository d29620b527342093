"""The outcome of a call: a result or a failure. The model is sent either."""

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec


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


class Returned(msgspec.Struct, frozen=True, gc=False):
    """The tool's answer, as text for the model, already bounded in size."""

    text: str
    images: tuple[Image, ...] = ()
    cut_bytes: int = 0
    """How many bytes of the tool's answer are not in `text`."""


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The tool did not answer. `text` tells the model what happened and what it can do."""

    text: str
    kind: FailureKind = FailureKind.RAISED


Outcome: TypeAlias = Returned | Failed


def encode_outcome(outcome: Outcome) -> bytes:
    """Encode an outcome for another process."""
    kept: dict[str, Any] = {"text": outcome.text.encode(errors="replace").decode()}
    if isinstance(outcome, Failed):
        kept["kind"] = str(outcome.kind)
    else:
        kept |= {"images": [[image.data, image.mime_type] for image in outcome.images], "cut": outcome.cut_bytes}
    return msgspec.msgpack.encode(kept)


def decode_outcome(body: bytes) -> Outcome:
    kept = msgspec.msgpack.decode(body)
    if "kind" in kept:
        return Failed(kept["text"], FailureKind(kept["kind"]))
    return Returned(kept["text"], tuple(Image(data, mime) for data, mime in kept["images"]), kept["cut"])
