"""Has a long whole answer mapped by litellm in a child process, by giving it there the bytes that were received here."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.conversation.errors import ChatError
from callgate.models import errors
from callgate.parsers.jobs import MAX_ANSWER, Job, ParserFailed, Refused
from callgate.parsers.pool import ParserPool
from callgate.untrusted.doors import OWN_BYTES, Door
from callgate.untrusted.messagepack import MOST_DEPTH, PackDoor, UntrustedPack
from callgate.untrusted.readers import READ_ERRORS, json_reader
from callgate.untrusted.slices import open_in_slices

_PROCESS: Final = "callgate.models.litellm_lane.answer_process"
COMPLETION: Final = Door(name="answer as a child mapped it", bytes=MAX_ANSWER)
MAP_ANSWER: Final = Job("wording", f"{_PROCESS}:map_answer", COMPLETION, f"{_PROCESS}:load")
TO_MAP: Final = PackDoor(name="answer to be mapped", bytes=OWN_BYTES, depth=MOST_DEPTH)
"""The bodies that were received are one value each: litellm reads them."""
STAND_IN: Final = ({"role": "user", "content": "."},)
"""The messages of the request whose answer is mapped: what litellm makes of an answer does not depend on them."""
NO_KEY: Final = "none-is-needed-here"
NOT_SENT: Final = frozenset({"messages", "tools", "tool_choice", "functions", "function_call", "stream_options"})


_read_completion = json_reader(dict[str, Any])


class ReceivedBody(msgspec.Struct, frozen=True):
    """One response as it was received."""

    status: int
    headers: dict[str, str]
    body: bytes


class MappingQuestion(msgspec.Struct, frozen=True):
    """The arguments of the request, and what was received for it, in order."""

    arguments: dict[str, Any]
    responses: list[ReceivedBody]


async def mapped(
    parsers: ParserPool,
    model: str,
    arguments: Mapping[str, Any],
    secrets: Sequence[str],
    responses: list[ReceivedBody],
) -> dict[str, Any]:
    """Return the completion that litellm makes of an answer. Raises `ChatError`."""
    kept = {name: _without(value, secrets) for name, value in arguments.items() if name not in NOT_SENT}
    question = MappingQuestion({**kept, "messages": list(STAND_IN), "stream": False}, responses)
    try:
        result = await parsers.run(
            MAP_ANSWER, UntrustedPack(msgspec.msgpack.encode(question), TO_MAP), f"answer of {model}"
        )
        completion = _read_completion(await open_in_slices(result))
    except (ParserFailed, Refused) as failure:
        raise _unreadable(str(failure)) from None
    except READ_ERRORS as error:
        raise _unreadable(type(error).__name__) from None
    return completion


def _unreadable(why: str) -> ChatError:
    return errors.bad_answer("The model's provider sent an answer that cannot be read.", why, again=False)


def _without(value: Any, secrets: Sequence[str]) -> Any:
    """Return a setting with what is secret replaced."""
    if isinstance(value, str):
        return NO_KEY if any(secret in value for secret in secrets) else value
    if isinstance(value, Mapping):
        return {name: _without(inner, secrets) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without(inner, secrets) for inner in value]
    return value
