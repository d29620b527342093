"""The body of a request. It is read as what every other reader of JSON makes of it, or refused with a 4xx."""

import json

import msgspec

from callgate.chat.requests import read_chat_request
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import written_here

MAX_MESSAGES = 50


def run(data: bytes) -> None:
    try:
        request = read_chat_request(written_here(data), {}, MAX_MESSAGES)
    except ChatError as error:
        assert 400 <= error.status < 500, error  # noqa: PT017 - the error is one of two good ends
        str(error).encode("utf-8", "surrogatepass")
        return
    body = json.loads(data.decode())
    assert body["model"] == request.model
    assert bool(body.get("stream")) is request.delivery.stream
    for raw in (*request.read_tools(), *request.fields.values()):
        json.loads(bytes(raw))  # msgspec refuses numbers that no double can hold, and these may be passed on
    msgspec.json.encode(request.other_fields())
