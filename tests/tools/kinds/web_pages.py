"""A web for tests: names that all lead to one server on loopback, with answers by host and path."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Answer = tuple[int, Mapping[str, str], bytes]


@dataclass
class WebOfTests:
    """What it answers, and what it was asked."""

    answer: Callable[[str, str, str], Answer]
    """Of method, host and target."""
    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Hosts and targets."""
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    addresses: dict[str, list[Sequence[str]]] = field(default_factory=dict)
    """The addresses that names have, at each lookup; loopback for all others."""

    def url(self, host: str, path: str = "/") -> str:
        return f"http://{host}:{self.port}{path}"

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        later = self.addresses.get(host)
        return later.pop(0) if later else ["127.0.0.1"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                first, *lines = head.split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                method, target, _ = first.split(" ")
                host = headers["host"].partition(":")[0]
                self.asked.append((host, target))
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(int(headers.get("content-length", 0))))
                status, more, body = self.answer(method, host, target)
                fields = {"Content-Length": str(len(body)), "Content-Type": "text/html", **more}
                lines = [f"HTTP/1.1 {status} Word", *(f"{name}: {value}" for name, value in fields.items())]
                writer.write("\r\n".join([*lines, "", ""]).encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is done
        finally:
            self.writers.discard(writer)
            writer.close()


@asynccontextmanager
async def web_of_tests(answer: Callable[[str, str, str], Answer]) -> AsyncIterator[WebOfTests]:
    web = WebOfTests(answer)
    server = await asyncio.start_server(web._serve, "127.0.0.1", 0)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        for writer in [*web.writers]:
            writer.close()
        await server.wait_closed()


def page(text: str, **headers: str) -> Answer:
    return 200, {name.replace("_", "-"): value for name, value in headers.items()}, text.encode()


def plain(text: str) -> Answer:
    return page(text, Content_Type="text/plain")


def leads_to(url: str) -> Answer:
    return 302, {"Location": url}, b""


def found(*pages: Mapping[str, str]) -> Answer:
    """The answer of SearXNG, and of Tavily."""
    return page(json.dumps({"query": "x", "results": list(pages)}), Content_Type="application/json")
