"""The built-in models: what they say follows directives at the start of lines in the conversation.

    CALL name {json}    call this tool; several lines are parallel calls of one turn
    THEN                what follows comes only after the results of the calls before
    SAY text            the final text (else "RESULT " and the results joined by " | ", or an echo)
    WORDS n             the final text is n numbered words
    LOOP name {json}    call this tool in every turn from here on

The newest user message with a directive counts, else the newest system message. The bases `agent-json`, `agent-fence`,
`agent-xml` and `agent-hermes` write their calls as text, as models without function calling do.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.scripted_upstream.records import RequestRecord, text_of
from tests.scripted_upstream.script import Call, Reply

DIRECTIVE = re.compile(r"^(CALL|LOOP|THEN|SAY|WORDS)\b[ \t]*(.*)$", re.MULTILINE)
BASES = ("agent", "agent-json", "agent-fence", "agent-xml", "agent-hermes", "echo")


@dataclass(frozen=True, slots=True)
class _Course:
    """The conversation a set of directives asks for."""

    rounds: Sequence[Sequence[Call]]
    loops: bool
    final: str | None


def answer(base: str, request: RequestRecord) -> Reply:
    """What a built-in model says to this request."""
    if base == "echo":
        return Reply(text=_last_user_text(request.messages))
    reply = _followed(request)
    written = WRITERS.get(base)
    if written is None or not reply.calls:
        return reply
    return replace(reply, calls=(), text=written(reply.calls))


def _followed(request: RequestRecord) -> Reply:
    course, after = _course(request.messages)
    results = [text_of(m.get("content")) for m in after if m.get("role") in ("tool", "user")]
    if course is None:
        return Reply(text=f"ECHO {_last_user_text(request.messages)}")
    turn = sum(m.get("role") == "assistant" for m in after)
    calls = course.rounds[turn] if turn < len(course.rounds) else ()
    if course.loops and not calls:
        calls = course.rounds[-1]
    if calls and request.body.get("tool_choice") != "none":
        return Reply(calls=calls)
    if course.final is not None:
        return Reply(text=course.final)
    return Reply(text="RESULT " + " | ".join(results) if results else f"ECHO {_last_user_text(request.messages)}")


def _course(messages: Sequence[dict[str, Any]]) -> tuple[_Course | None, Sequence[dict[str, Any]]]:
    for roles in (("user",), ("system", "developer")):
        for at in range(len(messages) - 1, -1, -1):
            found = DIRECTIVE.findall(text_of(messages[at].get("content"))) if messages[at].get("role") in roles else []
            if found:
                return _read(found), messages[at + 1 :]
    return None, messages


def _read(directives: Sequence[tuple[str, str]]) -> _Course:
    rounds: list[list[Call]] = [[]]
    final, loops = None, False
    for verb, rest in directives:
        match verb:
            case "THEN":
                rounds.append([])
            case "CALL" | "LOOP":
                name, _, arguments = rest.strip().partition(" ")
                rounds[-1].append(Call(name, arguments.strip() or "{}"))
                loops = loops or verb == "LOOP"
            case "WORDS":
                final = " ".join(f"word{number}" for number in range(int(rest or 50)))
            case _:
                final = rest
    return _Course([calls for calls in rounds if calls], loops, final)


def _last_user_text(messages: Sequence[dict[str, Any]]) -> str:
    return next((text_of(m.get("content")) for m in reversed(messages) if m.get("role") == "user"), "")


def _as_json(calls: Sequence[Call]) -> str:
    written = [{"name": call.name, "arguments": _object(call)} for call in calls]
    return json.dumps(written[0] if len(written) == 1 else written)


def _as_fence(calls: Sequence[Call]) -> str:
    return f"Let me use a tool.\n\n```json\n{_as_json(calls)}\n```"


def _as_xml(calls: Sequence[Call]) -> str:
    return "<function_calls>\n" + "\n".join(map(_invoke, calls)) + "\n</function_calls>"


def _invoke(call: Call) -> str:
    given = _object(call)
    parameters = given.items() if isinstance(given, dict) else ()
    texts = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in parameters)
    inside = "".join(f'<parameter name="{key}">{text}</parameter>' for key, text in texts)
    return f'<invoke name="{call.name}">{inside}</invoke>'


def _as_hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_as_json([call])}\n</tool_call>" for call in calls)


def _object(call: Call) -> Any:
    try:
        return json.loads(str(call.arguments))
    except ValueError:
        return call.arguments


WRITERS = {"agent-json": _as_json, "agent-fence": _as_fence, "agent-xml": _as_xml, "agent-hermes": _as_hermes}
