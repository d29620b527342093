"""The built-in `demo` model: no key, no network, no randomness. It answers a few requests by rule.

It shows the whole loop on the first run: it calls the clock and the calculator, in one turn or in two, in fragments as real
models do, and puts their results into its answer. It only calls offered tools. Where it is asked to cut its first call off it ends in
the middle of it, as a model does that has used up its tokens.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from callgate.calls.json_text import ARGUMENTS
from callgate.conversation import raw_json
from callgate.conversation.events import CallDelta, CallWritten, Finished, ModelEvent, ProviderHead, TextDelta
from callgate.conversation.model_requests import as_model_request
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, hand_nothing
from callgate.conversation.usage import Usage
from callgate.untrusted.doors import open_text
from callgate.untrusted.readers import read_leniently

WORD_SECONDS = 0.015
"""The pause between words: visible as a stream, and short."""
FRAGMENT_CHARS = 9
CUT_CHARS = 3
"""What is missing of a call that is cut off: of `{"expression": "2*21"}` so much that `2*2` could be read in it."""
SCHEMA_DEPTH = 6
CHARS_PER_TOKEN = 4

_THEN = re.compile(r"\b(?:and then|then|after that|afterwards)\b", re.IGNORECASE)
_CLOCK = re.compile(
    r"\b(?:what(?:'s| is)? (?:the )?(?:current )?(?:time|date)|(?:current |local )?time in|clock|what day)\b",
    re.IGNORECASE,
)
_PLACE = re.compile(r"\b(?:in|for|at) ((?:[A-Z][\w+-]*(?:/[A-Z][\w+-]*)*)(?: [A-Z][\w-]*)*)")
_CUT = re.compile(r"\b(?:cut|break)\b[^.?!]{0,60}\boff\b", re.IGNORECASE)
"""Words that ask for a call which is cut off."""
_SUM = re.compile(r"[-+(]{0,9}+\d[\d.,]{0,40}+(?:\s{0,9}+[-+*/%^()]{1,9}+\s{0,9}+\({0,9}+-?\d[\d.,]{0,40}+\){0,9}+)+")
"""With bounded parts, so that a search among thousands of digits stays linear."""
_WORDS = (
    ("multiplied by", "*"),
    ("divided by", "/"),
    ("times", "*"),
    ("plus", "+"),
    ("minus", "-"),
    ("×", "*"),
    ("÷", "/"),
)
_NAMED = re.compile(
    r"\b(?:call|use|run|try)\s+(?:the\s+)?`?([A-Za-z_][\w-]{0,63})`?(?:\s+tool)?(?:\s+with)?\s*(\{.*?\}(?=\s*(?:$|[.,;]|and\b)))?",
    re.IGNORECASE | re.DOTALL,
)
_ZONES = {
    "amsterdam": "Europe/Amsterdam", "bangkok": "Asia/Bangkok", "beijing": "Asia/Shanghai", "berlin": "Europe/Berlin",
    "cairo": "Africa/Cairo", "chicago": "America/Chicago", "delhi": "Asia/Kolkata", "dubai": "Asia/Dubai",
    "hong kong": "Asia/Hong_Kong", "istanbul": "Europe/Istanbul", "johannesburg": "Africa/Johannesburg",
    "lagos": "Africa/Lagos", "lisbon": "Europe/Lisbon", "london": "Europe/London", "los angeles": "America/Los_Angeles",
    "madrid": "Europe/Madrid", "mexico city": "America/Mexico_City", "moscow": "Europe/Moscow",
    "mumbai": "Asia/Kolkata", "nairobi": "Africa/Nairobi", "new york": "America/New_York", "paris": "Europe/Paris",
    "rome": "Europe/Rome", "san francisco": "America/Los_Angeles", "sao paulo": "America/Sao_Paulo",
    "seoul": "Asia/Seoul", "shanghai": "Asia/Shanghai", "singapore": "Asia/Singapore", "stockholm": "Europe/Stockholm",
    "sydney": "Australia/Sydney", "tokyo": "Asia/Tokyo", "toronto": "America/Toronto", "utc": "UTC",
    "vienna": "Europe/Vienna", "zurich": "Europe/Zurich",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A call to make."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _DemoReply:
    """The model's answer in one turn: calls or text."""

    text: str = ""
    calls: Sequence[_Wanted] = ()
    is_cut: bool = False
    """The answer ends in the middle of its last call, as one that has used up its tokens."""


class DemoModel:
    def __init__(self, name: str = "demo", pause: Callable[[], Any] | None = None) -> None:
        self.name = name
        self.host = ""
        self._pause = pause or (lambda: asyncio.sleep(WORD_SECONDS))

    @asynccontextmanager
    async def send(self, request: ModelRequest | Passthrough) -> AsyncIterator[ModelAnswer]:
        request = as_model_request(request)
        messages = [_decoded(message) for message in request.messages]
        failures = {}
        for tool in request.tools:
            function = _decoded(tool).get("function")
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                failures[function["name"]] = function.get("parameters") or {}
        offered = failures
        reply = _answer(messages, offered, _decoded(request.tool_choice), request.params)
        yield _DemoAnswer(_batches(reply, messages, request), self._pause if request.stream else None)


class _DemoAnswer:
    reason_is_raw = True
    lane = "demo"

    def __init__(self, batches: Iterator[Sequence[ModelEvent]], pause: Callable[[], Any] | None) -> None:
        self._batches = batches
        self._pause = pause

    hand_to = hand_nothing

    def __aiter__(self) -> "_DemoAnswer":
        return self

    async def __anext__(self) -> Sequence[ModelEvent]:
        batch = next(self._batches, None)
        if batch is None:
            raise StopAsyncIteration
        if self._pause is not None:
            await self._pause()
        return batch


# What it answers ----------------------------------------------------------------------------------


def _answer(messages: Sequence[Any], offered: Mapping[str, Any], choice: Any, params: Mapping[str, Any]) -> _DemoReply:
    request, since = _last_request(messages)
    if choice == "none":
        offered = {}
    if forced := _forced(choice, offered):
        wish_for_tool = next((wish for step in _steps(request, offered) for wish in step if wish.tool in forced), None)
        return _DemoReply(calls=[wish_for_tool or _Wanted(forced[0], _made_up_object(offered[forced[0]]))])
    if request.startswith("### Task:"):
        return _DemoReply(json.dumps({"title": "Trying the demo model", "tags": ["Demo"], "follow_ups": []}))
    if calling := _next_calls(request, since, offered):
        return calling
    if schema := _asked_schema(params):
        return _DemoReply(json.dumps(_made_up(schema)))
    names = {
        call.get("id"): (call.get("function") or {}).get("name", "")
        for message in since
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict)
    }
    if results := [
        (
            str(names.get(message.get("tool_call_id")) or message.get("name") or "last"),
            _ended(_text(message.get("content"))),
        )
        for message in since
        if message.get("role") == "tool" and not _says_cut(message)
    ]:
        return _DemoReply(" ".join(f"The {name} tool says: {text}" for name, text in results))
    opening = "I am the demo model built into Callgate: a few rules, no key, no network, no intelligence."
    if not offered:
        introduction = (
            f"{opening} No tools are offered to me here, so there is nothing for me to show. Ask a real model next."
        )
    else:
        if _find(offered, "clock"):
            asks = ["“What time is it in Tokyo?”"]
        else:
            asks = []
        if _find(offered, "calculator"):
            asks.append("“What is 2*21?”")
            asks.append("“What is 2*21? Cut your first call off.”")
        asks = asks or [f"“Call {next(iter(offered))}.”"]
        introduction = f"{opening} I can show you the tool loop. Ask me: {' or '.join(asks)}"
    return _DemoReply(introduction)


def _says_cut(message: Mapping[str, Any]) -> bool:
    """Return whether a message says of a call that it was cut off."""
    return message.get("role") == "tool" and '"code":"truncated"' in _text(message.get("content"))


def _last_request(messages: Sequence[Any]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Return the text of the last user message, and the messages after it."""
    plain = [message for message in messages if isinstance(message, dict)]
    for position in range(len(plain) - 1, -1, -1):
        if plain[position].get("role") == "user":
            return _text(plain[position].get("content")), plain[position + 1 :]
    return "", plain


def _next_calls(request: str, since: Sequence[Mapping[str, Any]], offered: Mapping[str, Any]) -> _DemoReply | None:
    """Return the calls of the next turn; None where all are made."""
    steps = _steps(request, offered)
    if steps and _CUT.search(request) is not None:
        steps = [steps[0], steps[0][-1:], *steps[1:]]
    steps_taken = sum(1 for message in since if message.get("role") == "assistant" and message.get("tool_calls"))
    if steps_taken >= len(steps):
        return None
    return _DemoReply(calls=steps[steps_taken], is_cut=not steps_taken and _CUT.search(request) is not None)


def _steps(request: str, offered: Mapping[str, Any]) -> list[list[_Wanted]]:
    """Return the calls for a request, one list per turn: `then` begins another turn."""
    steps = [_wanted(part, offered) for part in _THEN.split(request)]
    return [step for step in steps if step]


def _wanted(text: str, offered: Mapping[str, Any]) -> list[_Wanted]:
    calls: list[tuple[int, _Wanted]] = []
    if (match := _CLOCK.search(text)) and (tool := _find(offered, "clock")):
        calls.append((match.start(), _Wanted(tool, _clock_arguments(text, offered[tool]))))
    if tool := _find(offered, "calculator"):
        worded = text
        for word, sign in _WORDS:
            worded = re.sub(rf"(?<=\d)\s*{word}\s*(?=[-(\d])", sign, worded, flags=re.IGNORECASE)
        name = _property(offered[tool], "expr", "formula", "input", "calculation", "equation", "query")
        for match in _SUM.finditer(worded):
            arguments = _made_up_object(offered[tool])
            if name is not None:
                arguments[name] = match[0].replace(",", "").strip().rstrip(".")
            calls.append((match.start(), _Wanted(tool, arguments)))
    for match in _NAMED.finditer(text):
        if (tool := _find(offered, match[1])) and all(wish.tool != tool for _, wish in calls):
            calls.append((match.start(), _Wanted(tool, _read_object(match[2]) or _made_up_object(offered[tool]))))
    return [wish for _, wish in sorted(calls, key=lambda pair: pair[0])]


def _find(offered: Mapping[str, Any], name: str) -> str | None:
    # A server-side tool with the same name as a client's tool is offered with a prefix.
    return next((tool for tool in offered if tool == name), None) or next(
        (tool for tool in offered if tool.endswith(f"__{name}")), None
    )


def _clock_arguments(text: str, schema: Any) -> dict[str, Any]:
    arguments = _made_up_object(schema)
    place = match[1] if (match := _PLACE.search(text)) else ""
    words = place.lower().split()
    named = next((zone for count in (2, 1) if (zone := _ZONES.get(" ".join(words[:count])))), None)
    zone = place if "/" in place else named
    name = _property(schema, "zone", "tz", "location", "city", "place")
    if name is not None and (zone or name in arguments):
        arguments[name] = zone or "UTC"
    return arguments


def _property(schema: Any, *parts: str) -> str | None:
    return next((name for name in _properties(schema) if any(part in name.lower() for part in parts)), None)


def _forced(choice: Any, offered: Mapping[str, Any]) -> list[str]:
    """Return the tools one of which must be called."""
    if choice == "required":
        return list(offered)
    if not isinstance(choice, dict):
        return []
    function = choice.get("function")
    if isinstance(function, dict):
        name = function.get("name")
    else:
        name = choice.get("name")
    if isinstance(name, str) and name in offered:
        return [name]
    return []


def _ended(text: str) -> str:
    text = " ".join(text.split())
    if text.endswith((".", "!", "?")):
        return text
    return f"{text}."


# How it says it -----------------------------------------------------------------------------------


def _batches(reply: _DemoReply, messages: Sequence[Any], request: ModelRequest) -> Iterator[Sequence[ModelEvent]]:
    digest = hashlib.sha256(json.dumps(messages, sort_keys=True, default=str).encode()).hexdigest()
    head = ProviderHead(id=f"chatcmpl-demo-{digest[:16]}", model="demo", system_fingerprint="fp_demo")
    words = re.findall(r"\s*\S+\s*?", reply.text)
    limit = _decoded(request.params.get("max_completion_tokens") or request.params.get("max_tokens"))
    reason = "stop"
    if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < len(words):
        words = words[:limit]
        reason = "length"
    ids = [f"call_demo_{digest[:12]}{position}" for position in range(len(reply.calls))]
    written_arguments = [_json(call.arguments) for call in reply.calls]
    if reply.calls:
        reason = "tool_calls"
    if reply.is_cut:
        reason = "length"
        written_arguments[-1] = written_arguments[-1][:-CUT_CHARS]
    prompt_size = len(json.dumps(messages, default=str)) + sum(len(bytes(tool)) for tool in request.tools)
    prompt = max(1, prompt_size // CHARS_PER_TOKEN)
    answered = len(words) + sum(1 + -(-len(arguments) // CHARS_PER_TOKEN) for arguments in written_arguments)
    usage = Usage.of(prompt, answered)
    if not request.stream:
        calls = zip(reply.calls, written_arguments, ids, strict=True)
        written = [CallWritten(call.tool, arguments, id) for call, arguments, id in calls]
        text = [TextDelta("".join(words))] if words else []
        yield [head, *text, *written, Finished(reason), usage]
        return
    yield [head]
    for word in words:
        yield [TextDelta(word)]
    for index, (call, id) in enumerate(zip(reply.calls, ids, strict=True)):
        yield [CallDelta(index=index, id=id, name=call.tool, arguments="")]
        arguments = written_arguments[index]
        for start in range(0, len(arguments), FRAGMENT_CHARS):
            yield [CallDelta(index=index, arguments=arguments[start : start + FRAGMENT_CHARS])]
    yield [Finished(reason)]
    yield [usage]


# Schemas and shapes -------------------------------------------------------------------------------


def _asked_schema(params: Mapping[str, Any]) -> Any:
    response_format = _decoded(params.get("response_format"))
    if not isinstance(response_format, dict):
        return None
    if response_format.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"default": "demo"}}, "required": ["answer"]}
    inner = response_format.get("json_schema")
    if isinstance(inner, dict):
        return inner.get("schema")
    return None


def _properties(schema: Any) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(properties, dict):
        return properties
    return {}


def _made_up_object(schema: Any) -> dict[str, Any]:
    """Make arguments, which are an object even where a schema declares another type."""
    example = _made_up(schema)
    if isinstance(example, dict):
        return example
    return {}


def _made_up(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """Make a value that satisfies a typical tool schema; the same each time."""
    if not isinstance(schema, dict) or depth > SCHEMA_DEPTH:
        if depth:
            return "demo"
        return {}
    if root is None:
        root = schema
    if isinstance(reference := schema.get("$ref"), str):
        target = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if not isinstance(target, dict):
                return _made_up({}, root, depth + 1)
            target = target.get(part)
        return _made_up((target or {}), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key] and "properties" not in schema:
            return _made_up(schema[key][0], root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: Mapping[str, Any], root: Any, depth: int) -> Any:
    kind = schema.get("type", "object" if not depth or "properties" in schema else "string")
    if isinstance(kind, list) and kind:
        kind = kind[0]
    match kind:
        case "object":
            required = schema.get("required") or ()
            return {name: _made_up(_properties(schema).get(name, {}), root, depth + 1) for name in required}
        case "array":
            return [_made_up(schema.get("items") or {}, root, depth + 1) for _ in range(schema.get("minItems") or 0)]
        case "integer" | "number":
            return schema.get("minimum", min(1, schema.get("maximum", 1)))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "demo".ljust(schema.get("minLength") or 0, "o")[: schema.get("maxLength")]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if isinstance(content, str):
        return content
    return ""


def _read_object(text: str | None) -> Mapping[str, Any] | None:
    if not text:
        return None
    try:
        value = read_leniently(open_text(text, ARGUMENTS))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        return value
    return None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _decoded(value: Any) -> Any:
    return raw_json.read(value)
