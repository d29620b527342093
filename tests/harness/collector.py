"""A collector of spans: takes what is posted to it, answers as it was set to, and reads it back with OpenTelemetry's own package."""

import asyncio
import base64
import contextlib
import gzip
import json
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.environment import Environment
from tests.harness.server import serve

DRIVER = Path(__file__).parents[1] / "recorder" / "drivers" / "read_otlp.py"
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Posted:
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Collector:
    url: str = ""
    answers: list[tuple[int, Mapping[str, str], bytes]] = field(default_factory=list)
    """What is said to the next posts: status, headers, body. Beyond them all is taken."""
    posted: list[Posted] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing is answered before it is set."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.posted.append(Posted(scope["path"], headers, body))
        await self._notify()
        await self.hold.wait()
        status, extra, answer = self.answers.pop(0) if self.answers else (200, {}, b"")
        if status == 200:
            self.taken.append(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)
        said = [(name.encode(), value.encode()) for name, value in extra.items()]
        await send({"type": "http.response.start", "status": status, "headers": said})
        await send({"type": "http.response.body", "body": answer})
        await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, *, posted: int = 0, taken: int = 0) -> None:
        """Wait for so many posts, and until so many of them were taken."""
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(lambda: len(self.posted) >= posted and len(self.taken) >= taken)

    def requests(self) -> list[dict[str, Any]]:
        """What was taken, as it is read."""
        lines = "\n".join(body.hex() for body in self.taken)
        if not lines:
            return []
        python = Environment("otlp").interpreter
        done = subprocess.run([python, DRIVER], input=lines, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def spans(self) -> list[dict[str, Any]]:
        """All spans that were taken: ids in hexadecimal digits, attributes as a mapping."""
        return [
            _readable(span)
            for request in self.requests()
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@contextlib.asynccontextmanager
async def collecting(*answers: tuple[int, Mapping[str, str], bytes]) -> AsyncIterator[Collector]:
    collector = Collector(answers=list(answers))
    collector.hold.set()
    async with serve(collector) as collector.url:
        yield collector


def attributes(listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {each["key"]: _value(each["value"]) for each in listed}


def _readable(span: dict[str, Any]) -> dict[str, Any]:
    ids = {name: base64.b64decode(span.get(name, "")).hex() for name in ("traceId", "spanId", "parentSpanId")}
    events = [{**each, "attributes": attributes(each.get("attributes", ()))} for each in span.get("events", ())]
    return {**span, **ids, "events": events, "attributes": attributes(span.get("attributes", ()))}


def _value(value: Mapping[str, Any]) -> Any:
    [(kind, found)] = value.items()
    match kind:
        case "intValue":
            return int(found)
        case "arrayValue":
            return [_value(each) for each in found.get("values", ())]
        case _:
            return found
