"""Words a request in a child process, with litellm loaded there."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from callgate.conversation.errors import ChatError
from callgate.conversation.ports import ModelRequest
from callgate.models.litellm_model import from_request, loaded_at_once
from callgate.models.resolve import LiteLLMSettings
from callgate.models.translated import bedrock, claude, cohere, gemini, openai_shaped
from callgate.models.translated.translation import Fields
from callgate.models.translated.wording import TO_WORD, WordingAnswer, WordingError, WordingQuestion
from callgate.policy.litellm_settings import without_settings
from callgate.untrusted.doors import Untrusted
from callgate.untrusted.readers import json_reader, read_value

WORDERS: Final[Mapping[str, Callable[..., Awaitable[msgspec.Struct]]]] = {
    lane.__name__.rpartition(".")[2]: lane.word for lane in (bedrock, claude, cohere, gemini, openai_shaped)
}
"""What words a request, by the name of its module."""

COPILOT_FOLDER: Final = "GITHUB_COPILOT_TOKEN_DIR"

_read_question = json_reader(WordingQuestion)


def load() -> None:
    """Load litellm, which takes seconds."""
    tempfile.tempdir = "/"  # a library looks for a folder by writing a file, which this process may not
    # litellm's class makes the folder of its tokens where there is none. There is none of ours here.
    os.environ[COPILOT_FOLDER] = "/"
    loaded_at_once()


def word(payload: bytes) -> bytes:
    question = _read_question(Untrusted(payload, TO_WORD).open())
    try:
        worded = asyncio.run(_worded(question))
        return msgspec.json.encode(WordingAnswer(msgspec.Raw(msgspec.json.encode(worded))))
    except UnicodeEncodeError:
        error = ChatError(400, "A message holds half of a surrogate pair, which no JSON text can carry.")
    except ChatError as refusal:
        error = refusal
    except MemoryError:
        raise
    except Exception as failure:  # noqa: BLE001 - litellm's own errors, and KeyErrors for odd messages
        error = from_request(failure)
    return msgspec.json.encode(WordingAnswer(error=WordingError.of(error)))


async def _worded(question: WordingQuestion) -> Any:
    settings = LiteLLMSettings(question.settings)
    request = ModelRequest(
        messages=[read_value(message) for message in question.messages],
        tools=question.tools,
        tool_choice=question.tool_choice,
        params=without_settings(question.params),
        stream=question.stream,
        deferred=question.deferred,
    )
    fields = Fields(question.provider, settings)
    return await WORDERS[question.wire](settings, request, fields, **question.place)
