"""The body of a form: refused with a 400, or read; and what is passed on of it is read alike by us and by somebody else.

The first line of the input is the content type.
"""

from email import message_from_bytes
from email.message import EmailMessage
from email.policy import HTTP

from callgate.conversation.errors import ChatError
from callgate.models.multipart import read_form, write_form


def run(data: bytes) -> None:
    content_type, _, body = data.partition(b"\n")
    try:
        parts = read_form(body, content_type.decode("latin-1"))
    except ChatError as error:
        assert error.status == 400, error  # noqa: PT017 - the error is one of two good ends
        return
    assert all(part.value in body for part in parts)
    kind, written = write_form(parts)
    assert read_form(written, kind) == parts
    if any(not part.name.isprintable() or (part.filename and not _is_plain(part.filename)) for part in parts):
        return  # the other reader takes line ends for its own that are none in HTTP
    again = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + written, policy=HTTP)
    assert isinstance(again, EmailMessage)
    if parts:
        found = [part.get_param("name", header="content-disposition") for part in again.iter_parts()]
        assert len(found) == len(parts)
        assert [name for name in found if isinstance(name, str) and name.isascii()] == [
            part.name for part in parts if part.name.isascii()
        ]


def _is_plain(text: bytes) -> bool:
    return all(0x20 <= each < 0x7F for each in text)
