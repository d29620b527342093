"""Compiles the schemas of the tools that a source lists, in shares between which the event loop goes on.

Where they are many or large, a child process compiles them first: what ends or holds it costs this list. The registry compiles
what no source has compiled, which are tools of the config.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import anyio.lowlevel
import msgspec
from msgspec.structs import replace

from callgate.calls.offer import Check
from callgate.parsers.jobs import ParserFailed, Reason
from callgate.parsers.pool import ParserPool
from callgate.tools.executor import Tool
from callgate.tools.registry import MAX_SCHEMA_BYTES, schema_text, whole_schema
from callgate.tools.schema import SchemaError, compile_schema
from callgate.tools.schema_process import COMPILE_SCHEMAS, SCHEMAS
from callgate.untrusted.messagepack import UntrustedPack
from callgate.untrusted.readers import READ_ERRORS, json_reader
from callgate.untrusted.slices import open_in_slices

SHARE_TOOLS: Final = 20
SHARE_BYTES: Final = 64 * 1024
"""The schemas that are compiled between two turns of the event loop. The last one may be larger, up to the limit of a tool."""
SMALL_TOOLS: Final = 200
SMALL_BYTES: Final = 64 * 1024
"""The new schemas of one list that are compiled here without a child."""
SMALL_PATTERNS: Final = 20
"""The regular expressions of the same: one of twenty characters may take ten megabytes."""

_Compiled: TypeAlias = Check | SchemaError
_read_reasons = json_reader(list[str])


class SourceSchemas:
    """The compiled schemas of one source: what a new list has in common with the last one is not compiled again."""

    def __init__(self, source: str, parsers: ParserPool) -> None:
        self._source = source
        self._parsers = parsers
        self._compiled: dict[bytes, _Compiled] = {}

    async def compile(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """Return the tools with their checks, or with what is wrong with their schemas. Raises `ParserFailed`."""
        texts: list[bytes | SchemaError] = []
        async for part in _shares(tools):
            texts += map(_text_of, part)
        new = {text for text in texts if isinstance(text, bytes) and text not in self._compiled}
        compiled = {text: self._compiled[text] for text in texts if isinstance(text, bytes) and text in self._compiled}
        if len(new) > SMALL_TOOLS or sum(map(len, new)) > SMALL_BYTES or patterns_in(new) > SMALL_PATTERNS:
            compiled |= await self._refused_by_child(list(new))
        written: list[Tool] = []
        size = 0
        for tool, text in zip(tools, texts, strict=True):
            if isinstance(text, SchemaError):
                written.append(replace(tool, schema_error=str(text)))
                continue
            if text not in compiled:
                size += len(text)
                compiled[text] = _compile(tool)
            written.append(_with(tool, compiled[text]))
            if len(written) % SHARE_TOOLS == 0 or size > SHARE_BYTES:
                size = 0
                await anyio.lowlevel.checkpoint()
        self._compiled = compiled
        return tuple(written)

    async def _refused_by_child(self, schemas: list[bytes]) -> dict[bytes, _Compiled]:
        """Have schemas compiled in a child; return those that it refused."""
        result = await self._parsers.run(
            COMPILE_SCHEMAS, UntrustedPack(msgspec.msgpack.encode(schemas), SCHEMAS), self._source
        )
        try:
            reasons = _read_reasons(await open_in_slices(result))
        except READ_ERRORS as error:
            raise ParserFailed(Reason.GARBAGE, type(error).__name__) from None
        if len(reasons) != len(schemas):
            raise ParserFailed(Reason.GARBAGE, "not an answer for each schema")
        return {schema: SchemaError(reason) for schema, reason in zip(schemas, reasons, strict=True) if reason}


def patterns_in(schemas: Iterable[bytes]) -> int:
    """Return about how many regular expressions some schemas have, at least as many as there are."""
    return sum(schema.count(b"attern") for schema in schemas)


def compile_at_once(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Return the tools with their checks, or with what is wrong with their schemas: for threads, and at the start."""
    return tuple(_compiled_tools(tools))


def _compiled_tools(tools: Sequence[Tool]) -> Iterator[Tool]:
    for tool in tools:
        text = _text_of(tool)
        if isinstance(text, SchemaError):
            yield replace(tool, schema_error=str(text))
        else:
            yield _with(tool, _compile(tool))


async def _shares(tools: Sequence[Tool]) -> AsyncIterator[Sequence[Tool]]:
    for start in range(0, len(tools), SHARE_TOOLS):
        yield tools[start : start + SHARE_TOOLS]
        await anyio.lowlevel.checkpoint()


def _text_of(tool: Tool) -> bytes | SchemaError:
    try:
        text = schema_text(whole_schema(tool.parameters))
    except SchemaError as error:
        return error
    if len(text) > MAX_SCHEMA_BYTES:
        return SchemaError(f"its schema takes {len(text)} bytes, and {MAX_SCHEMA_BYTES} are allowed")
    return text


def _compile(tool: Tool) -> _Compiled:
    try:
        return compile_schema(whole_schema(tool.parameters))
    except SchemaError as error:
        return error


def _with(tool: Tool, compiled: _Compiled) -> Tool:
    if isinstance(compiled, SchemaError):
        return replace(tool, schema_error=str(compiled))
    return replace(tool, check=compiled)
