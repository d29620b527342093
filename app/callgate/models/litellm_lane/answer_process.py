"""Maps an answer in a child process: litellm asks there, and is answered with what was received."""

import asyncio
import tempfile
from typing import Any

import httpx
import msgspec

from callgate.models import litellm_seam as seam
from callgate.models.litellm_lane.answer_elsewhere import TO_MAP, MappingQuestion, ReceivedBody
from callgate.models.litellm_lane.tap import METHOD
from callgate.models.litellm_model import as_dicts, loaded_at_once
from callgate.parsers.jobs import Refused
from callgate.untrusted.messagepack import open_pack
from callgate.untrusted.readers import msgpack_reader

_read_question = msgpack_reader(MappingQuestion)


class ReplayedResponses(httpx.AsyncBaseTransport):
    """Answers the n-th request with the n-th response. Nothing goes to a network."""

    def __init__(self, responses: list[ReceivedBody]) -> None:
        self._responses = iter(responses)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        received = next(self._responses, None)
        if received is None:
            raise httpx.ConnectError("nothing more was received")
        headers = {name: value for name, value in received.headers.items() if name not in _OF_THE_WIRE}
        return httpx.Response(received.status, headers=headers, content=received.body, request=request)


_OF_THE_WIRE = frozenset({"content-length", "transfer-encoding", "connection"})


def load() -> None:
    """Load litellm, which takes seconds."""
    tempfile.tempdir = "/"  # a library looks for a folder by writing a file, which this process may not
    loaded_at_once()


def map_answer(payload: bytes) -> bytes:
    question = _read_question(open_pack(payload, TO_MAP))
    litellm = loaded_at_once()
    transport = ReplayedResponses(question.responses)
    setattr(seam.HTTP_HANDLER.get(), METHOD, staticmethod(lambda *_, **__: transport))
    try:
        completion = asyncio.run(_asked(litellm, question.arguments))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - litellm's errors, and IndexErrors for an odd answer
        raise Refused(type(error).__name__) from None
    return msgspec.json.encode(as_dicts(completion))


async def _asked(litellm: Any, arguments: dict[str, Any]) -> Any:
    seam.CLIENTS.get().flush_cache()  # those of the last job are closed
    return await litellm.acompletion(**arguments)
