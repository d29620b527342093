"""Calls of declared tools that a client sends back in the form in which it was shown them: which run they are of, and what they say."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from callgate.conversation.hidden_history import ReturnedMessage
from callgate.hosted.declared import HostedTools, by_name_in
from callgate.hosted.rows import OUR_BLOCK
from callgate.untrusted.doors import OWN_BYTES, Door, Untrusted
from callgate.untrusted.readers import json_reader

DIGEST: Final = 12
"""Hex digits that tell the calls of a run apart."""
_OUR_ID: Final = re.compile(rf"(?:[a-z]{{2}}_|{OUR_BLOCK})([0-9a-f]{{24}})(?:[0-9a-f]{{4}})?([0-9a-f]{{{DIGEST}}})")
KEPT_CALL: Final = Door(name="a kept call", bytes=OWN_BYTES)

_encode = msgspec.json.Encoder().encode


class KeptCall(msgspec.Struct, frozen=True):
    """A call as it is kept, for the model to read it again as it was."""

    name: str
    arguments: str
    result: str


_read_call = json_reader(KeptCall)


class ReturnedCall(msgspec.Struct, eq=False, kw_only=True):
    """One call that came back, in the messages that were made of it."""

    key: str
    """What it is kept under; empty for one that was not made here."""
    function: dict[str, Any]
    answer: dict[str, Any]

    def rename(self, hosted: HostedTools | None) -> None:
        """Give the call of a family the name of the tool that stands for it by now, which rules about that tool go by."""
        tools = by_name_in(hosted)
        names = {tool.row.family: name for name, tool in tools.items()} | {
            tool.row.block: name for name, tool in tools.items()
        }
        self.function["name"] = names.get(self.function["name"], self.function["name"])

    def fill(self, call: KeptCall) -> None:
        """Put in the words of then: what the client was shown of them is less."""
        self.function |= {"name": call.name, "arguments": call.arguments}
        self.answer["content"] = call.result


def digest_of(call_id: str) -> str:
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:DIGEST]


def key_of(run_id: str, call_id: str) -> str:
    """Return what a call of a run is kept under."""
    return run_id[4:] + digest_of(call_id)


def key_in(id: object) -> str:
    """Return what a call is kept under, by the id that a client was shown; empty for an id that was not made here."""
    if isinstance(id, str) and (match := _OUR_ID.fullmatch(id)):
        return match[1] + match[2]
    return ""


def encode_call(call: KeptCall) -> bytes:
    return _encode(call)


def decode_call(data: bytes) -> KeptCall:
    return _read_call(Untrusted(data, KEPT_CALL).open())


def returned_call(
    id: str, name: str, arguments: Mapping[str, Any], result: str
) -> tuple[dict[str, Any], ReturnedMessage, ReturnedCall]:
    """Return a call for an assistant's message, the message that answers it, and both as what may be filled."""
    function = {"name": name, "arguments": _encode(arguments).decode()}
    answer = ReturnedMessage({"role": "tool", "tool_call_id": id, "content": result})
    call = {"id": id, "type": "function", "function": function}
    return call, answer, ReturnedCall(key=key_in(id), function=function, answer=answer)
