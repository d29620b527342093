"""The schemas of a source's list are compiled in shares, a long list by a child first, and none of them by the registry."""

import asyncio
from typing import Any

import pytest

from callgate.parsers.jobs import ParserFailed, Reason
from callgate.tools import registry as registry_module
from callgate.tools import schema, source_schemas
from callgate.tools.executor import Tool
from callgate.tools.registry import MAX_SCHEMA_BYTES, Registry
from callgate.tools.source_schemas import SHARE_TOOLS, SMALL_PATTERNS, SMALL_TOOLS, SourceSchemas, compile_at_once
from tests.parsers.reading_here import ReadingHere
from tests.parsers.rogue_child import ROGUE_JSON, RogueChild

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def tool(number: int, **keywords: Any) -> Tool:
    parameters = {"type": "object", "properties": {f"p{number}": {"type": "string"}}, **keywords}
    return Tool(name=f"tool{number}", description="d", parameters=parameters, executor=None)  # type: ignore[arg-type]


class Compiling:
    """Counts what is compiled here, and the most between two turns of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = self.most = self._before = 0
        compile_schema = schema.compile_schema

        def counted(parameters: Any) -> Any:
            self.total += 1
            return compile_schema(parameters)

        monkeypatch.setattr(source_schemas, "compile_schema", counted)

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self.total - self._before)
            self._before = self.total
            await asyncio.sleep(0)


class OneSource:
    name = "server"
    kind = "mcp"

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self._tools = tools

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def tools(self) -> tuple[Tool, ...]:
        return self._tools


async def test_two_thousand_tools_are_compiled_in_shares_and_not_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(parameters: Any) -> None:
        pytest.fail("the registry compiled what its source has compiled")

    compiling = Compiling(monkeypatch)
    monkeypatch.setattr(registry_module, "compile_schema", never)
    pool = ReadingHere()
    schemas = SourceSchemas("server", pool)
    watching = asyncio.create_task(compiling.watch())
    tools = await schemas.compile([tool(number) for number in range(2_000)])
    await asyncio.sleep(0)
    assert compiling.total == 2_000
    assert compiling.most <= SHARE_TOOLS
    assert pool.jobs == {"documents": 1}
    registry = Registry()
    registry.add_source(OneSource(tools))
    await registry.open()
    assert len(registry.tools()) == 2_000
    assert registry.tools()[0].tool.check({"p0": 5}) is not None
    await registry.close()
    again = await schemas.compile([tool(number) for number in range(1, 2_001)])
    assert compiling.total == 2_001
    assert pool.jobs == {"documents": 1}, "one new schema needs no child"
    assert again[:-1] == tools[1:]
    watching.cancel()


async def test_a_share_is_over_after_so_many_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = Compiling(monkeypatch)
    watching = asyncio.create_task(compiling.watch())
    pool = ReadingHere()
    await SourceSchemas("server", pool).compile([tool(number, description="x" * 60_000) for number in range(12)])
    await asyncio.sleep(0)
    assert pool.jobs == {"documents": 1}, "by their size"
    assert compiling.total == 12
    assert compiling.most <= 2
    watching.cancel()


async def test_schemas_with_many_patterns_are_compiled_by_a_child_first() -> None:
    pool = ReadingHere()
    many = [{"pattern": f"x{number}"} for number in range(SMALL_PATTERNS + 1)]
    named: dict[str, Any] = {f"x{number}": {} for number in range(SMALL_PATTERNS)}
    await SourceSchemas("server", pool).compile([tool(1, allOf=many[:-1]), tool(2, patternProperties={"x": {}})])
    assert pool.jobs == {"documents": 1}, "of all schemas together"
    await SourceSchemas("server", pool).compile([tool(1, allOf=many)])
    assert pool.jobs == {"documents": 2}
    await SourceSchemas("server", pool).compile([tool(1, properties=named)])
    assert pool.jobs == {"documents": 2}, "which has none"


async def test_a_schema_that_cannot_be_compiled_is_said_by_the_registry_whoever_tried() -> None:
    odd = [
        tool(1, required=5),
        tool(2, **{"$ref": "http://example.com/x"}),
        tool(3, type="array"),
        tool(4, description="x" * MAX_SCHEMA_BYTES),
        tool(5, default="\ud800"),
        tool(6),
    ]
    many = [tool(number) for number in range(100, 101 + SMALL_TOOLS)]
    pool = ReadingHere()
    reasons: list[list[tuple[str, str]]] = []
    for tools in (
        await SourceSchemas("server", pool).compile(odd),
        await SourceSchemas("server", pool).compile([*odd, *many]),
        compile_at_once(odd),
    ):
        registry = Registry()
        registry.add_source(OneSource(tuple(tools)))
        await registry.open()
        assert "tool6" in [usable.name for usable in registry.tools()]
        reasons.append([(bad.name, bad.reason) for bad in registry.quarantined()])
        await registry.close()
    assert pool.jobs == {"documents": 1}
    assert reasons[0] == reasons[1] == reasons[2]
    assert [name for name, _ in reasons[0]] == ["tool1", "tool2", "tool3", "tool4", "tool5"]
    assert "leads out of the schema" in reasons[0][1][1]


@pytest.mark.parametrize("answer", [b"[]", b"[5]", *ROGUE_JSON.values()], ids=["too few", "a number", *ROGUE_JSON])
async def test_what_is_no_answer_of_a_child_is_none_and_the_next_list_is_compiled(answer: bytes) -> None:
    tools = [tool(number) for number in range(SMALL_TOOLS + 1)]
    with pytest.raises(ParserFailed) as failed:
        await SourceSchemas("server", RogueChild(answer)).compile(tools)
    assert failed.value.reason is Reason.GARBAGE
    assert len(await SourceSchemas("server", ReadingHere()).compile(tools)) == len(tools)
