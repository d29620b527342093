"""Documents from a network, and long ones, are read in a process beside us: what ends that process is one document refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Response

from callgate.parsers.jobs import Job, Payload
from callgate.parsers.pool import ParserLimits, ParserPool
from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.openapi import source as source_module
from callgate.tools.kinds.openapi.document import BadDocument
from callgate.tools.kinds.openapi.reading import READ_HERE
from callgate.tools.kinds.openapi.reading_process import READING
from callgate.tools.kinds.openapi.source import Api, OpenApiSource, Unavailable
from tests.harness.server import serve
from tests.parsers.reading_here import ReadingHere
from tests.parsers.rogue_child import ROGUE_PACK, RogueChild
from tests.untrusted.test_yaml_readers import ATTACKS, OF_AN_API

SHOP = (Path(__file__).parent / "openapi" / "shop.yaml").read_text()
GOOD = "openapi: 3.1.0\npaths: {/x: {get: {operationId: fine}}}\n"
AUTH = {name: f"sk-planted-{name}" for name in ("api_key", "query_key", "cookie_key", "basic", "token", "oauth")}
PUBLIC = Api(rules=AddressRules(allow_private=True), base_url="http://127.0.0.1:1")


@asynccontextmanager
async def reading(**limits: Any) -> AsyncIterator[ParserPool]:
    pool = ParserPool(ParserLimits(**limits))
    try:
        yield pool
    finally:
        await pool.close()


def documents(texts: dict[str, str]) -> FastAPI:
    app = FastAPI()

    @app.get("/{number}")
    async def document(number: int) -> Response:
        return Response(list(texts.values())[number], media_type="application/yaml")

    return app


@pytest.mark.anyio
async def test_each_attack_is_one_document_refused_while_another_is_read() -> None:
    attacks = {name: ATTACKS[name] for name in ("aliases", "brackets in a value", "a long list")} | OF_AN_API
    async with serve(documents({"good": GOOD, **attacks})) as url, reading() as pool:

        async def tools_of(number: int) -> list[str]:
            source = OpenApiSource("x", PUBLIC, f"{url}/{number}", parsers=pool)
            await source.open()
            await source.close()
            return [tool.name for tool in source.tools()]

        for number, name in enumerate(attacks, start=1):
            attacked, good = await asyncio.gather(tools_of(number), tools_of(0), return_exceptions=True)
            assert isinstance(attacked, BadDocument), name
            assert good == ["fine"]
        assert len(pool.process_ids()) <= 2


@pytest.mark.anyio
async def test_a_child_that_dies_of_a_document_makes_its_source_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(documents({"good": GOOD})) as url, reading() as pool:
        source = OpenApiSource("x", PUBLIC, f"{url}/0", parsers=pool)
        with monkeypatch.context() as patch:
            patch.setattr(
                source_module, "READ_DOCUMENT", Job("documents", "tests.parsers.odd_jobs:recurse_in_c", READING)
            )
            with pytest.raises(Unavailable, match="the process that read it ended"):
                await source.open()
            patch.setattr(source_module, "READ_DOCUMENT", Job("documents", "tests.parsers.odd_jobs:echo", READING))
            with pytest.raises(Unavailable, match="no answer"):
                await source.open()
        await source.open()
        assert [tool.name for tool in source.tools()] == ["fine"]
        await source.close()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ROGUE_PACK)
async def test_what_a_rogue_child_says_of_a_document_is_refused_and_the_next_is_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = OpenApiSource("x", PUBLIC, "http://127.0.0.1:1/x", parsers=RogueChild(ROGUE_PACK[kind]))
    with pytest.raises(Unavailable, match="answered what is no answer"):
        await source._read_in_child(GOOD)
    monkeypatch.setattr(source, "_parsers", ReadingHere())
    await source._read_in_child(GOOD)
    assert [tool.name for tool in source.tools()] == ["fine"]


def test_a_long_file_is_read_elsewhere_into_the_same_and_a_short_one_never_goes_there(tmp_path: Path) -> None:
    api = Api(auth=AUTH, headers={"X-Mine": "1"}, prefix="shop")
    short = tmp_path / "short.yaml"
    short.write_text(SHOP)
    long = tmp_path / "long.yaml"
    long.write_text(SHOP + "\n# " + "-" * READ_HERE)
    pool = ParserPool()
    here = OpenApiSource("shop", api, str(short), parsers=pool)
    assert pool.jobs == {}
    elsewhere = OpenApiSource("shop", api, str(long), parsers=pool)
    assert pool.jobs == {"documents": 1}
    assert elsewhere.left_out() == here.left_out()
    for mine, other in zip(here.tools(), elsewhere.tools(), strict=True):
        for field in ("name", "description", "parameters", "policy", "kind", "source", "claimed"):
            assert getattr(mine, field) == getattr(other, field)
        for field in ("_url", "_headers", "_method"):
            if hasattr(mine.executor, field):
                assert getattr(mine.executor, field) == getattr(other.executor, field)


def test_no_secret_goes_to_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    file = tmp_path / "long.yaml"
    file.write_text(SHOP + "\n# " + "-" * READ_HERE)

    def run(_: ParserPool, job: Any, payload: Payload, source: str) -> Any:
        sent.append(payload.data)
        raise BadDocument("that is all")

    monkeypatch.setattr(ParserPool, "run_at_once", run)
    with pytest.raises(BadDocument):
        OpenApiSource("shop", Api(auth=AUTH, headers={"X-Key": "planted-too"}), str(file))
    assert b"planted" not in sent[0]
