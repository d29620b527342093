"""Bodies of the Responses and the Messages API: refused with a status below 500, or a request for a chat."""

from callgate.conversation.errors import ChatError
from callgate.hosted.declared import no_stand_ins
from callgate.messages.requests import read_messages_request
from callgate.responses.approvals import decisions_of
from callgate.responses.input_items import messages_of
from callgate.responses.offered import offered_tools
from callgate.responses.request import chat_fields, read_body_of, shown_fields
from callgate.untrusted.doors import written_here


def run(data: bytes) -> None:
    for read in (_response, _message):
        try:
            read(data)
        except ChatError as error:
            assert 400 <= error.status < 500, error  # noqa: PT017 - the error is one of two good ends


def _response(data: bytes) -> None:
    asked, fields = read_body_of(written_here(data), 100)
    offered = offered_tools(asked.tools or (), no_stand_ins, lambda: frozenset({"files"}))
    items = asked.input
    decisions_of(items, None, {})
    messages_of(items, [], lambda sealed: None)
    chat_fields(asked, fields, offered)
    shown_fields(asked, offered)


def _message(data: bytes) -> None:
    read_messages_request(written_here(data), {}, 2000)
