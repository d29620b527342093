"""Judges what tools say of themselves, before any model reads it: it is masked, or the tool is held out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.conversation.events import GuardrailJudged
from callgate.guardrails.guardrails import Guardrails
from callgate.guardrails.hook import Blocked, Guardrail
from callgate.guardrails.judge import ChatJudge, HooksAtPoints
from callgate.guardrails.leaves import MAX_DEPTH, TooDeep
from callgate.guardrails.request_texts import PROSE
from callgate.guardrails.verdicts import GuardEvent
from callgate.tools.executor import Tool

NOT_YET: Final = "guardrails have not looked at what it says of itself yet"

_encode = msgspec.json.Encoder(enc_hook=str).encode


class DescriptionScreen:
    """The verdicts on the current tools."""

    def __init__(self, guardrails: Guardrails) -> None:
        self._guardrails = guardrails
        self._hooks: Sequence[Guardrail] = guardrails.of_descriptions
        self._tell: Callable[[GuardrailJudged], None] = guardrails.tell
        self._judged: dict[bytes, Tool | str] = {}
        """The tool as it may be offered, or why it may not, by what it says."""

    def apart(self) -> "DescriptionScreen":
        """Return one for the tools of a single request."""
        return DescriptionScreen(self._guardrails)

    async def look(self, tools: Iterable[tuple[str, Tool]]) -> None:
        """Judge the tools that have not been judged, each with the name of its source; forget those that are gone."""
        judged: dict[bytes, Tool | str] = {}
        for source, tool in tools:
            key = _key(source, tool)
            if key in self._judged:
                judged[key] = self._judged[key]
            else:
                judged[key] = await self._look(source, tool)
        self._judged = judged

    def judged(self, source: str, tool: Tool) -> Tool:
        """Return a tool as it may be offered. Raises `HeldOut`."""
        verdict = self._judged.get(_key(source, tool), NOT_YET)
        if isinstance(verdict, str):
            raise HeldOut(verdict)
        return replace(
            tool,
            description=verdict.description,
            parameters=verdict.parameters,
            title=verdict.title,
            output_schema=verdict.output_schema,
        )

    async def _look(self, source: str, tool: Tool) -> Tool | str:
        names = (tool.name, tool.claimed or tool.name, f"{source or 'config'}/{tool.name}")
        judge = ChatJudge(HooksAtPoints(), GuardEvent(point="description", texts=()), self._say)
        try:
            said = {"description": tool.description, "name": tool.name, "parameters": tool.parameters}
            leaves = [*_leaves({**said, "title": tool.title, "output_schema": tool.output_schema})]
            event = GuardEvent(point="description", texts=[text for text, _ in leaves], tool=tool.name)
            texts = await judge.texts(self._hooks, event, tool_names=names)
        except Blocked as blocked:
            return str(blocked)
        except TooDeep as error:
            return str(error)
        masked = dict[str, str]()
        for (text, is_prose), other in zip(leaves, texts, strict=True):
            if text != other and not is_prose:
                return "a guardrail would mask something of it that is no description"
            masked[text] = other
        parameters: Any = _masked(tool.parameters, masked)
        output_schema: Any = _masked(tool.output_schema, masked)
        return replace(
            tool,
            description=masked[tool.description],
            parameters=parameters,
            title=masked[tool.title],
            output_schema=output_schema,
        )

    async def _say(self, event: GuardrailJudged) -> None:
        self._tell(event)


class HeldOut(ValueError):
    """Raised for a tool that is not offered, with the reason."""


def _key(source: str, tool: Tool) -> bytes:
    return _encode([source, tool.name, tool.description, tool.parameters, tool.title, tool.output_schema])


def _leaves(value: Any, *, is_prose: bool = False, depth: int = 0) -> Iterable[tuple[str, bool]]:
    """Yield the texts of a schema, the names in it too, and whether each may be masked."""
    if depth > MAX_DEPTH:
        raise TooDeep("its schema is nested too deeply to be checked")
    if isinstance(value, str):
        yield value, is_prose
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name), False
            yield from _leaves(inner, is_prose=name in PROSE, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, depth=depth + 1)


def _masked(value: Any, masked: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            name: masked[inner] if name in PROSE and isinstance(inner, str) else _masked(inner, masked)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(inner, masked) for inner in value]
    return value
