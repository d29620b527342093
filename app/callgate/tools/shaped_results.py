"""Shapes the results of tools as their operator says: a part of them by JMESPath, text or the structured content, and what of it
violates the schema that its server gave.

Nothing of this hides an answer: an expression that gives nothing leaves the result as it is, and a finding says so.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.calls.outcome import Failed, Outcome, ResultFacts, Returned
from callgate.calls.states import ReadyCall
from callgate.tools.executor import CallContext, Executor, Tool
from callgate.tools.schema import SchemaError, compile_validity
from callgate.tools.schema_size import unfolded
from callgate.tools.tool_filter import glob_matches, is_glob
from callgate.untrusted.doors import Door, TooMuch, Untrusted
from callgate.untrusted.readers import READ_ERRORS, read_value

ResultForm: TypeAlias = Literal["text", "structured", "auto"]

IN_A_THREAD: Final = 16 * 1024
"""Bytes from which a result is read in a thread: an expression may make a thousand values of a few kilobytes."""
RESULT: Final = Door(name="result that is selected from", bytes=4 * 1024 * 1024)
MAX_OUTPUT_SCHEMA: Final = 64 * 1024
"""Bytes of the largest schema of results that is compiled."""
MAX_PATTERNS: Final = 50
"""Regular expressions of the same, each of which may take half a megabyte."""
MAX_WORK: Final = 64 * 1024 * 1024
"""Bytes of a structured result times the size of its schema, above which it is not checked: neither is ours."""

SELECT_FAILED: Final = "select_failed"
"""The expression gave nothing of the result, or the result is no JSON."""
SELECT_SKIPPED: Final = "select_skipped"
"""The result is too large, or was cut."""
OUTPUT_SCHEMA_VIOLATION: Final = "output_schema_violation"
"""The structured content is not what its server's schema says."""


class ResultRules(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry of the config says about the results of its tools."""

    selects: Mapping[str, str] = {}
    """The expressions, by names of tools at their source, or globs."""
    form: ResultForm = "auto"
    cache_seconds: int = 0
    cache_shared: bool = False
    nano: int = 0
    """What one call costs, in billionths of a dollar."""

    def select_of(self, name: str) -> str:
        """Return the expression for a tool; empty for none. A name goes before globs, and the longest of these before others."""
        if name in self.selects:
            return self.selects[name]
        globs = sorted((glob for glob in self.selects if is_glob(glob)), key=len, reverse=True)
        return next((self.selects[glob] for glob in globs if glob_matches(glob, name)), "")


def shaped(tool: Tool, name: str, rules: ResultRules) -> Tool:
    """Return a tool whose results are shaped, where there is anything to shape. `name`: that at its source."""
    select = rules.select_of(name)
    if not select and tool.output_schema is None and rules.form != "structured":
        return tool
    executor = ShapedResults(tool.executor, select=select, form=rules.form, output_schema=tool.output_schema)
    return replace(tool, executor=executor, select=select)


class ShapedResults:
    """Runs calls by another executor, and shapes what comes of them."""

    def __init__(
        self,
        executor: Executor,
        *,
        select: str = "",
        form: ResultForm = "auto",
        output_schema: Mapping[str, Any] | None = None,
    ) -> None:
        self._executor = executor
        self._select = select
        self._form = form
        self._output_schema = output_schema
        self._accepts: Callable[[Any], bool] | None = None
        self._schema_size = 0
        """The size of the schema, once it is compiled."""

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        outcome = await self._executor.execute(call, replace(context, wants_structured=True))
        if isinstance(outcome, Failed):
            return outcome
        findings: list[str] = []
        if outcome.structured is not None and await self._violates(outcome.structured):
            findings.append(OUTPUT_SCHEMA_VIOLATION)
        facts = outcome.facts or ResultFacts()
        shaped = await self._shaped(outcome, findings)
        if shaped is not None:
            facts = replace(facts, selected_from=len(outcome.text.encode(errors="replace")) if self._select else 0)
            outcome = replace(outcome, text=shaped)
        if findings:
            facts = replace(facts, findings=(*facts.findings, *findings))
        structured = None
        if context.for_client and not self._select and OUTPUT_SCHEMA_VIOLATION not in findings:
            structured = outcome.structured
        if facts == ResultFacts():
            return replace(outcome, structured=structured)
        return replace(outcome, structured=structured, facts=facts)

    async def _shaped(self, outcome: Returned, findings: list[str]) -> str | None:
        """Return the text instead of that of a result; None where it stays."""
        structured = outcome.structured
        if structured is not None and not self._takes_structured():
            structured = None
        if not self._select:
            return None if structured is None else bytes(structured).decode()
        text = outcome.text.encode(errors="replace")
        size = len(text) + len(bytes(outcome.structured or b""))
        if outcome.cut_bytes or size > RESULT.bytes:
            findings.append(SELECT_SKIPPED)
            return None
        sources = (structured,) if structured is not None else (text, outcome.structured)
        if size > IN_A_THREAD:
            selected = await asyncio.to_thread(_selected, self._select, sources)
        else:
            selected = _selected(self._select, sources)
        if selected is None:
            findings.append(SELECT_FAILED)
        return selected

    def _takes_structured(self) -> bool:
        if self._form == "auto":
            return bool(self._select) and self._output_schema is not None
        return self._form == "structured"

    async def _violates(self, structured: msgspec.Raw) -> bool:
        schema = self._output_schema
        if schema is None:
            return False
        if self._accepts is None:
            self._accepts, self._schema_size = await asyncio.to_thread(_compiled, schema)
        size = len(bytes(structured))
        if size * self._schema_size > MAX_WORK:
            return False
        if size > IN_A_THREAD:
            return not await asyncio.to_thread(lambda: self._is_valid(structured))
        return not self._is_valid(structured)

    def _is_valid(self, structured: msgspec.Raw) -> bool:
        assert self._accepts is not None, "the schema is compiled"
        return self._accepts(read_value(structured))


def _compiled(schema: Mapping[str, Any]) -> tuple[Callable[[Any], bool], int]:
    """Compile a schema of results, and return its size. One that cannot be is satisfied by everything, because it is its server's
    mistake."""
    try:
        text = msgspec.json.encode(schema)
        if len(text) <= MAX_OUTPUT_SCHEMA and text.count(b'"pattern') <= MAX_PATTERNS:
            return compile_validity(schema), unfolded(schema).size
    except (SchemaError, TypeError, ValueError, RecursionError):
        pass
    return lambda value: True, 0


def _selected(expression: str, sources: tuple[bytes | msgspec.Raw | None, ...]) -> str | None:
    """Return what an expression takes of the first source that is JSON; None where that is nothing."""
    import jmespath
    from jmespath.exceptions import JMESPathError

    for source in sources:
        if source is None:
            continue
        try:
            value = read_value(source if isinstance(source, msgspec.Raw) else Untrusted(source, RESULT).open())
        except (TooMuch, *READ_ERRORS):
            continue
        try:
            part = jmespath.search(expression, value)
            if part is None or isinstance(part, str):
                return part
            return msgspec.json.encode(part).decode()
        except (JMESPathError, RecursionError, TypeError, ValueError, ArithmeticError):
            return None
    return None
