"""Checks the body of a request to the Responses API, and reads it into a chat request."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from callgate.api.request_schema import from_validation, wrong
from callgate.api.responses.offered import Offered, chat_choice
from callgate.api.strict_json import invalid_json, read_fields
from callgate.conversation.errors import ChatError

INCLUDES: Final = frozenset(
    {
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
        "message.input_image.image_url",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512
MAX_LOGPROBS: Final = 20
NOT_OURS: Final = {
    "conversation": "Conversations of a provider's account are not continued here; use 'previous_response_id'.",
    "prompt": "Prompts of a provider's account cannot be used here; send 'instructions' and 'input'.",
}
"""Fields that name objects of the operator's account."""
PASSED: Final = {
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "parallel_tool_calls",
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "seed",
    "stop",
    "logit_bias",
}
"""Fields that Chat Completions has under the same name."""


class _Text(msgspec.Struct, gc=False):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _Reasoning(msgspec.Struct, gc=False):
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesBody(msgspec.Struct):
    """The fields of a request that are read. Unknown fields are ignored."""

    model: str
    input: str | list[Any] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def shows_thinking(self) -> bool:
        return self.reasoning is not None and bool(self.reasoning.summary or self.reasoning.generate_summary)

    def includes(self, what: str) -> bool:
        return what in (self.include or ())


_body = msgspec.json.Decoder(ResponsesBody)
_encode = msgspec.json.Encoder().encode


def read_body_of(body: bytes, max_depth: int) -> tuple[ResponsesBody, dict[str, msgspec.Raw]]:
    """Read a body; return the request, and the undecoded fields. Raises `ChatError` that names the wrong field."""
    fields = read_fields(body, max_depth)
    try:
        asked = _body.decode(body)
    except msgspec.ValidationError as error:
        raise from_validation(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_json(str(error)) from None
    for name in NOT_OURS.keys() & fields.keys():
        if bytes(fields[name]).strip() != b"null":
            raise ChatError(400, f"{NOT_OURS[name]} '{name}' is refused.", param=name, code="unsupported_parameter")
    _check(asked)
    return asked, fields


def _check(asked: ResponsesBody) -> None:
    if not asked.model:
        raise wrong("model", "you must provide a model parameter", "missing_required_parameter")
    for name, least in (("max_output_tokens", 1), ("max_tool_calls", 1), ("top_logprobs", 0)):
        value = getattr(asked, name)
        if value is not None and value < least:
            raise wrong(name, f"Invalid '{name}': expected a value of at least {least}.", "integer_below_min_value")
    if (asked.top_logprobs or 0) > MAX_LOGPROBS:
        raise wrong("top_logprobs", f"Invalid 'top_logprobs': at most {MAX_LOGPROBS}.", "integer_above_max_value")
    for place, name in enumerate(asked.include or ()):
        if name not in INCLUDES:
            raise wrong(f"include[{place}]", f"Invalid value: '{name[:64]}'. Known are {', '.join(sorted(INCLUDES))}.")
    if asked.background and asked.store is False:
        raise wrong("background", "Background mode needs 'store': what is not kept could not be asked for.")
    _check_metadata(asked.metadata or {})


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if len(metadata) > METADATA_PAIRS:
        raise wrong("metadata", f"Invalid 'metadata': at most {METADATA_PAIRS} pairs.", "object_above_max_properties")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise wrong(
                f"metadata.{key[:64]}", "Invalid type for a value of 'metadata': expected a string.", "invalid_type"
            )
        if len(key) > METADATA_KEY or len(value) > METADATA_VALUE:
            message = f"Invalid 'metadata': keys have at most {METADATA_KEY} characters, values {METADATA_VALUE}."
            raise wrong(f"metadata.{key[:64]}", message, "string_above_max_length")


def chat_fields(asked: ResponsesBody, fields: Mapping[str, msgspec.Raw], offered: Offered) -> dict[str, Any]:
    """Return the fields of the chat request, without messages."""
    chat: dict[str, Any] = {
        name: fields[name] for name in PASSED & fields.keys() if bytes(fields[name]).strip() != b"null"
    }
    chat["model"] = asked.model
    if asked.stream:
        chat["stream"] = True
    if asked.metadata:
        chat["metadata"] = asked.metadata
    if asked.max_output_tokens is not None:
        chat["max_completion_tokens"] = asked.max_output_tokens
    if asked.top_logprobs or asked.includes("message.output_text.logprobs"):
        chat |= {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}
    if asked.reasoning is not None and asked.reasoning.effort is not None:
        chat["reasoning_effort"] = asked.reasoning.effort
    if asked.reasoning is not None and (summary := asked.reasoning.summary or asked.reasoning.generate_summary):
        chat["reasoning_summary"] = summary
    if asked.text is not None:
        if asked.text.verbosity is not None:
            chat["verbosity"] = asked.text.verbosity
        if (form := _response_format(asked.text.format)) is not None:
            chat["response_format"] = form
    if offered.functions:
        chat["tools"] = offered.functions
    if asked.parallel_tool_calls is not False:
        chat.pop("parallel_tool_calls", None)  # the default, which some providers refuse without tools
    if (choice := chat_choice(asked.tool_choice, offered)) not in (None, "auto"):
        chat["tool_choice"] = choice
    return chat


def _response_format(format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Convert the format, which is flat here and nested in Chat Completions; None for text, the default."""
    if format is None or format.get("type") == "text":
        return None
    match format.get("type"):
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            schema = {key: value for key, value in format.items() if key != "type" and value is not None}
            if not isinstance(schema.get("name"), str) or not isinstance(schema.get("schema"), dict):
                where = "text.format.name" if not isinstance(schema.get("name"), str) else "text.format.schema"
                raise wrong(where, f"Missing required parameter: '{where}'.", "missing_required_parameter")
            return {"type": "json_schema", "json_schema": schema}
        case _:
            raise wrong("text.format.type", "Invalid value: 'text.format.type' is text, json_object or json_schema.")


def shown_fields(asked: ResponsesBody, offered: Offered) -> dict[str, Any]:
    """Return the fields of the request that a response repeats, from its first event on."""
    text = asked.text or _Text()
    reasoning = asked.reasoning or _Reasoning()
    return {
        "model": asked.model,
        "previous_response_id": asked.previous_response_id,
        "instructions": asked.instructions,
        "tools": offered.shown,
        "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
        "truncation": asked.truncation or "disabled",
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "presence_penalty": asked.presence_penalty or 0.0,
        "frequency_penalty": asked.frequency_penalty or 0.0,
        "top_logprobs": asked.top_logprobs or 0,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "store": asked.store is not False,
        "background": bool(asked.background),
        "service_tier": asked.service_tier or "default",
        "metadata": asked.metadata or {},
        "safety_identifier": asked.safety_identifier,
        "prompt_cache_key": asked.prompt_cache_key,
        "user": asked.user,
    }
