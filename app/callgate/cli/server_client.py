"""The HTTP client of commands that need a running server: our own HTTP client, without the environment's proxies. It is imported
only when it is used."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from callgate.cli.shared import WRONG
from callgate.telemetry.terminal import say
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import read_leniently

if TYPE_CHECKING:
    from callgate.http.interface import Response

Found = TypeVar("Found")
DEFAULT_PORT = 8000
SECONDS = 30.0
ANSWER_BYTES = 64 * 1024 * 1024
SERVER_ANSWER = Door(name="an answer of a Callgate server", bytes=ANSWER_BYTES)

UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Where the server is. Default: this machine, $CALLGATE_PORT or 8000."),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="The key to ask with.", envvar="CALLGATE_KEY")
]


def address_of(url: str | None) -> str:
    return (url or f"http://127.0.0.1:{os.environ.get('CALLGATE_PORT', DEFAULT_PORT)}").rstrip("/")


def ask_server(
    method: str, path: str, url: str | None, key: str | None, body: Any = None, seconds: float = SECONDS
) -> Any:
    """Return the server's decoded response; exits with its error message."""
    return run_asking(fetch_answer(method, path, url, key, body, seconds), url)


def run_asking(work: Coroutine[Any, Any, Found], url: str | None) -> Found:
    """Run a coroutine with requests to a server; exits with an error message if that fails."""
    from callgate.http.interface import TransportError

    try:
        return asyncio.run(work)
    except ServerRefused as error:
        raise fail_with(str(error)) from None
    except (TransportError, ValueError) as error:
        raise fail_with(f"{address_of(url)}: {error}{hint_at_start(error)}") from None


def hint_at_start(error: Exception) -> str:
    """Return what to do where no server answers."""
    if "refused" not in str(error).lower():
        return ""
    return "; no server runs there: `callgate serve` starts one, and --url or $CALLGATE_PORT says where it is"


def status_of(url: str, seconds: float) -> int:
    """Return the status of a server's `/health/live`. Raises `TransportError`."""
    return asyncio.run(_status_of(url, seconds))


async def fetch_answer(
    method: str, path: str, url: str | None, key: str | None, body: Any = None, seconds: float = SECONDS
) -> Any:
    """Return the server's decoded response. Raises `ServerRefused` for an error."""
    async with open_request(method, path, url, key, body, seconds=seconds) as response:
        return read_answer(await response.read(ANSWER_BYTES))


async def follow(
    path: str,
    url: str | None,
    key: str | None,
    take: Callable[[str, Any], None],
    first: Callable[[], Awaitable[None]],
) -> None:
    """Pass the server-sent events of a path to `take`, each with its name. `first` is awaited once the stream is open."""
    name = "message"
    unfinished = b""
    async with open_request("GET", path, url, key, headers={"Accept": "text/event-stream"}) as response:
        await first()
        async for data in response.chunks():
            *lines, unfinished = (unfinished + data).split(b"\n")
            for line in lines:
                field, _, value = line.partition(b": ")
                if field == b"event":
                    name = value.decode()
                elif field == b"data":
                    take(name, read_answer(value))


def read_answer(data: bytes) -> Any:
    """Decode what a server wrote. Raises `ValueError`."""
    return read_leniently(Untrusted(data, SERVER_ANSWER).open())


class ServerRefused(Exception):
    """Raised for an error of the server, with its message."""


@asynccontextmanager
async def open_request(
    method: str,
    path: str,
    url: str | None,
    key: str | None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> AsyncIterator["Response"]:
    """Open a response of the server; `seconds`: its longest silence. Raises `ServerRefused` for an error."""
    from callgate.http.client import HttpClient
    from callgate.http.interface import Deadlines

    fields = {"Content-Type": "application/json", **(headers or {})}
    if key:
        fields["Authorization"] = f"Bearer {key}"
    content = b"" if body is None else json.dumps(body).encode()
    client = HttpClient()
    try:
        deadlines = Deadlines(connect=seconds, first_byte=seconds, idle=seconds, total=float("inf"))
        async with client.request(method, address_of(url) + path, fields, content, deadlines) as response:
            if response.status >= 400:
                try:
                    message = str(read_answer(await response.read(ANSWER_BYTES))["error"]["message"])
                except (ValueError, KeyError, TypeError):
                    message = f"the server answered {response.status}"
                raise ServerRefused(message)
            yield response
    finally:
        await client.close()


def fail_with(why: str) -> typer.Exit:
    """Print an error message; the result is to be raised."""
    say(f"callgate: {why}", err=True)
    return typer.Exit(WRONG)


async def _status_of(url: str, seconds: float) -> int:
    from callgate.http.client import HttpClient
    from callgate.http.interface import Deadlines

    client = HttpClient()
    try:
        deadlines = Deadlines(connect=seconds, first_byte=seconds, idle=seconds, total=seconds)
        async with client.get(f"{url.rstrip('/')}/health/live", {}, deadlines) as response:
            return response.status
    finally:
        await client.close()
