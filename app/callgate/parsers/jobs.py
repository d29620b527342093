"""What is sent to a child process and comes back: jobs, frames, and how a job failed."""

import struct
from enum import StrEnum
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.messagepack import PackDoor, UntrustedPack, open_pack, pack_written_here
from callgate.untrusted.readers import READ_ERRORS, msgpack_reader

HEAD: Final = struct.Struct("!Q")
"""The length of the frame that follows."""
MAX_ANSWER: Final = 64 * 1024 * 1024
"""Bytes of one answer of a child."""


Payload: TypeAlias = Untrusted | UntrustedPack
"""What a child is asked to read: its own door opens it there."""
D = TypeVar("D", bound=Door | PackDoor)


class Job(msgspec.Struct, Generic[D], frozen=True):
    """A function that runs in a child, from bytes to bytes. It raises `Refused` for what cannot be read."""

    kind: str
    """The children that run it; each kind has its own, because they import different things."""
    function: str
    """Its place: `callgate.package.module:name`."""
    answer: D
    """The door that its result has to pass here: it is as foreign as what the child has read."""
    loading: str = ""
    """The place of a function without arguments that is called before, once in each child: it loads what takes long. Its time
    is not the job's."""


class JobQuestion(msgspec.Struct, array_like=True, frozen=True):
    """What a child is asked."""

    function: str
    loading: str
    payload: bytes


class JobAnswer(msgspec.Struct, array_like=True, frozen=True):
    """What a child answers: that the job begins, and then how it ended."""

    status: Literal["begun", "done", "refused", "failed"]
    payload: bytes
    """Where it begins, what the child could not be taken, with commas; the result; or the reason, as text."""


class Reason(StrEnum):
    """Why a job has no result."""

    BUSY = "busy"
    """Too many were waiting."""
    DIED = "died"
    FAILED = "failed"
    """The function raised something."""
    GARBAGE = "garbage"
    """What came back is no answer, or too long."""
    MEMORY = "memory"
    NOT_STARTED = "not_started"
    STALLED = "stalled"
    """It took longer than allowed."""


class Refused(ValueError):
    """Raised by a function for what it cannot read, in words for whoever sent it or set it up."""


class ParserFailed(Exception):
    """Raised where a job has no result. What it read is refused with it; nothing else is affected."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(WORDS[reason])
        self.reason = reason
        self.detail = detail


WORDS: Final = {
    Reason.BUSY: "too much is being read already",
    Reason.DIED: "the process that read it ended",
    Reason.FAILED: "the process that read it failed",
    Reason.GARBAGE: "the process that read it answered what is no answer",
    Reason.MEMORY: "reading it takes more memory than is allowed",
    Reason.NOT_STARTED: "no process could be started to read it",
    Reason.STALLED: "reading it takes longer than is allowed",
}

_read_question = msgpack_reader(JobQuestion)
_read_answer = msgpack_reader(JobAnswer)
ANSWER: Final = PackDoor(name="answer of a child", bytes=MAX_ANSWER, values=3, depth=1)
"""Its result is one value, with a door of its own."""


def frame(message: JobQuestion | JobAnswer) -> bytes:
    data = msgspec.msgpack.encode(message)
    return HEAD.pack(len(data)) + data


def question_in(data: bytes) -> JobQuestion:
    """Read the question of the parent, in the child."""
    return _read_question(pack_written_here(data))


def answer_in(data: bytes) -> JobAnswer:
    """Read an answer, which is as foreign as what the child has read. Raises `ParserFailed`."""
    try:
        return _read_answer(open_pack(data, ANSWER))
    except READ_ERRORS as error:
        raise ParserFailed(Reason.GARBAGE, type(error).__name__) from None


def result_of(answer: JobAnswer) -> bytes:
    """Return the result in an answer. Raises `Refused` or `ParserFailed`."""
    if answer.status == "done":
        return answer.payload
    text = answer.payload.decode(errors="replace")
    if answer.status == "refused":
        raise Refused(text)
    if answer.status == "begun":
        raise ParserFailed(Reason.GARBAGE, "it began twice")
    if text == MemoryError.__name__:
        raise ParserFailed(Reason.MEMORY)
    raise ParserFailed(Reason.FAILED, text)
