"""Many requests at once, cheaply: raw HTTP on connections of their own, because a client library would be the limit."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Shot:
    """One request and what came of it. Status 0: the connection broke."""

    status: int
    seconds: float
    body: bytes = b""

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


def chat_body(text: str, *, stream: bool = False, model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}], **fields}


async def shoot(url: str, body: Any = None, *, path: str = CHAT, headers: Mapping[str, str] | None = None) -> Shot:
    """A POST, or a GET without a body; the connection is closed after it."""
    where = urlsplit(url)
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"host: {where.netloc}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(content)}"]
    began = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
    except OSError:
        return Shot(0, time.perf_counter() - began)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        answer = await reader.read()
    except ConnectionError:
        return Shot(0, time.perf_counter() - began)
    finally:
        writer.close()
    seconds = time.perf_counter() - began
    head, _, rest = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    return Shot(int(words[1]) if len(words) > 1 else 0, seconds, rest)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


async def gone(tasks: "set[asyncio.Task[Any]]") -> None:
    """Ends what still runs of a load."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
