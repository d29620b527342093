"""Checks the body of a request to the Responses API, and reads it into a chat request."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from callgate.api.field_errors import from_validation, wrong
from callgate.api.strict_json import invalid_json, read_fields
from callgate.responses.offered import Offered, chat_choice
from callgate.responses.original import ONLY_HERE
from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import json_reader

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
METADATA_PAIRS = 16
METADATA_KEY = 64
METADATA_VALUE = 512
MAX_LOGPROBS: Final = 20
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


NOT_HERE: Final = ("messages", "n", "functions", "function_call")
"""Fields of Chat Completions that would change what a response is."""


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
    conversation: str | dict[str, Any] | None = None
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


_body = json_reader(ResponsesBody)
_encode = msgspec.json.Encoder().encode


READ: Final = frozenset(ResponsesBody.__struct_fields__)
"""Fields that are judged in the words of a chat."""
NOT_CARRIED: Final = {
    "prompt": "Prompts of a provider's account cannot be used here; send 'instructions' and 'input'.",
}
"""Fields that no lane takes on, whoever may name what is in them."""
KNOWN: Final = READ | PASSED | ONLY_HERE | NOT_CARRIED.keys()
"""Fields of this API. All others are a provider's own, but for those `NOT_HERE`."""


def read_body_of(body: Opened, max_depth: int) -> tuple[ResponsesBody, dict[str, msgspec.Raw]]:
    """Read a body; return the request, and the undecoded fields. Raises `ChatError` that names the wrong field."""
    fields = read_fields(body, max_depth)
    try:
        params = _body(body)
    except msgspec.ValidationError as error:
        raise from_validation(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_json(str(error)) from None
    _check(params)
    return params, fields


def _check(params: ResponsesBody) -> None:
    if not params.model:
        raise wrong("model", "you must provide a model parameter", "missing_required_parameter")
    for name, least in (("max_output_tokens", 1), ("max_tool_calls", 1), ("top_logprobs", 0)):
        value = getattr(params, name)
        if value is not None and value < least:
            raise wrong(name, f"Invalid '{name}': expected a value of at least {least}.", "integer_below_min_value")
    if (params.top_logprobs or 0) > MAX_LOGPROBS:
        raise wrong("top_logprobs", f"Invalid 'top_logprobs': at most {MAX_LOGPROBS}.", "integer_above_max_value")
    for place, name in enumerate(params.include or ()):
        if name not in INCLUDES:
            raise wrong(f"include[{place}]", f"Invalid value: '{name[:64]}'. Known are {', '.join(sorted(INCLUDES))}.")
    if params.background and params.store is False:
        raise wrong("background", "Background mode needs 'store': what is not kept could not be asked for.")
    check_metadata(params.metadata or {})


def check_metadata(metadata: Mapping[str, Any]) -> None:
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


def chat_fields(params: ResponsesBody, fields: Mapping[str, msgspec.Raw], offered: Offered) -> dict[str, Any]:
    """Return the fields of the chat request, without messages."""
    chat: dict[str, Any] = {
        name: fields[name] for name in PASSED & fields.keys() if bytes(fields[name]).strip() != b"null"
    }
    chat |= providers_own(fields)
    chat["model"] = params.model
    if params.stream:
        chat["stream"] = True
    if params.metadata:
        chat["metadata"] = params.metadata
    if params.max_output_tokens is not None:
        chat["max_completion_tokens"] = params.max_output_tokens
    if params.top_logprobs or params.includes("message.output_text.logprobs"):
        chat |= {"logprobs": True, "top_logprobs": params.top_logprobs or 0}
    if params.reasoning is not None and params.reasoning.effort is not None:
        chat["reasoning_effort"] = params.reasoning.effort
    if params.reasoning is not None and (summary := params.reasoning.summary or params.reasoning.generate_summary):
        chat["reasoning_summary"] = summary
    if params.text is not None:
        if params.text.verbosity is not None:
            chat["verbosity"] = params.text.verbosity
        if (form := _response_format(params.text.format)) is not None:
            chat["response_format"] = form
    if offered.functions:
        chat["tools"] = offered.functions
    if params.parallel_tool_calls is not False:
        chat.pop("parallel_tool_calls", None)  # the default, which some providers refuse without tools
    if params.tool_choice is not None and (choice := chat_choice(params.tool_choice, offered)) != "auto":
        chat["tool_choice"] = choice
    return chat


def providers_own(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the fields of a body that are no part of this API, or of Chat Completions too: a model of chats is sent them."""
    others = fields.keys() - KNOWN
    if not others:
        return {}
    for name in NOT_HERE:
        if name in others:
            raise wrong(name, f"Unknown parameter: '{name}'.", "unknown_parameter")
    return {name: fields[name] for name in fields if name in others and bytes(fields[name]).strip() != b"null"}


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
                if not isinstance(schema.get("name"), str):
                    where = "text.format.name"
                else:
                    where = "text.format.schema"
                raise wrong(where, f"Missing required parameter: '{where}'.", "missing_required_parameter")
            return {"type": "json_schema", "json_schema": schema}
        case _:
            raise wrong("text.format.type", "Invalid value: 'text.format.type' is text, json_object or json_schema.")


def shown_fields(params: ResponsesBody, offered: Offered) -> dict[str, Any]:
    """Return the fields of the request that a response repeats, from its first event on."""
    text = params.text or _Text()
    reasoning = params.reasoning or _Reasoning()
    return {
        "model": params.model,
        "previous_response_id": params.previous_response_id,
        "instructions": params.instructions,
        "tools": offered.shown,
        "tool_choice": "auto" if params.tool_choice is None else params.tool_choice,
        "truncation": params.truncation or "disabled",
        "parallel_tool_calls": params.parallel_tool_calls is not False,
        "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
        "top_p": 1.0 if params.top_p is None else params.top_p,
        "presence_penalty": params.presence_penalty or 0.0,
        "frequency_penalty": params.frequency_penalty or 0.0,
        "top_logprobs": params.top_logprobs or 0,
        "temperature": 1.0 if params.temperature is None else params.temperature,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "max_output_tokens": params.max_output_tokens,
        "max_tool_calls": params.max_tool_calls,
        "store": params.store is not False,
        "background": bool(params.background),
        "service_tier": params.service_tier or "default",
        "metadata": params.metadata or {},
        "safety_identifier": params.safety_identifier,
        "prompt_cache_key": params.prompt_cache_key,
        "user": params.user,
        **({} if params.conversation is None else {"conversation": {"id": id_in(params.conversation)}}),
    }


def id_in(value: str | dict[str, Any]) -> str:
    """Return the id of the conversation that a request names."""
    if isinstance(value, str):
        return value
    id = value.get("id")
    if not isinstance(id, str):
        raise wrong("conversation.id", "Missing required parameter: 'conversation.id'.", "missing_required_parameter")
    return id
