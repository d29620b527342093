"""Reads a document in a child process: parses it first, with as little imported as that takes."""

from typing import Final

import msgspec

from callgate.parsers.jobs import MAX_ANSWER, Job, Refused
from callgate.tools.kinds.openapi.document import BadDocument, OpenApiDocument
from callgate.untrusted.doors import OWN_BYTES
from callgate.untrusted.messagepack import PackDoor, open_pack
from callgate.untrusted.readers import msgpack_reader

READING: Final = PackDoor(name="what a child read in a document", bytes=MAX_ANSWER)
"""Each operation is one value, with a door of its own."""
READ_DOCUMENT: Final = Job("documents", f"{__name__}:read", READING)
TO_READ: Final = PackDoor(name="document to be read", bytes=OWN_BYTES, values=7, depth=1)


class DocumentQuestion(msgspec.Struct, frozen=True):
    text: str
    address: str | None
    """The document's URL, if it has one."""
    terms: bytes
    """What the operator's settings say, encoded."""


_read_question = msgpack_reader(DocumentQuestion)


def read(payload: bytes) -> bytes:
    question = _read_question(open_pack(payload, TO_READ))
    try:
        document = OpenApiDocument.read(question.text, question.address)
        from callgate.tools.kinds.openapi.reading import encoded_reading

        return encoded_reading(document, question.terms)
    except BadDocument as error:
        raise Refused(str(error)) from None
