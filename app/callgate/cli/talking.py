"""Asking a running server, for commands that need one. The standard library's client: nothing heavy is imported."""

import json
import os
import urllib.error
import urllib.request
from typing import Annotated, Any
from urllib.parse import quote

import typer

from callgate.cli.shared import WRONG

DEFAULT_PORT = 8000
SECONDS = 30.0

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Where the server is. Default: this machine, $CALLGATE_PORT or 8000.")
]
KeyOption = Annotated[str | None, typer.Option("--key", help="The key to ask with.", envvar="CALLGATE_KEY")]


def address_of(url: str | None) -> str:
    return (url or f"http://127.0.0.1:{os.environ.get('CALLGATE_PORT', DEFAULT_PORT)}").rstrip("/")


def asked(method: str, path: str, url: str | None, key: str | None, body: Any = None) -> Any:
    """The server's answer, or its words about why there is none and the end of the command."""
    try:
        with opened(method, path, url, key, body) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise failed(words_of(error)) from None
    except (OSError, ValueError) as error:
        raise failed(f"{address_of(url)}: {getattr(error, 'reason', error)}") from None


def opened(
    method: str,
    path: str,
    url: str | None,
    key: str | None,
    body: Any = None,
    headers: dict[str, str] | None = None,
    seconds: float = SECONDS,
) -> Any:
    """The answer's open body. Proxies of the environment are for the world outside and not for one's own server."""
    request = urllib.request.Request(  # noqa: S310 - the address is the operator's own
        address_of(url) + quote(path), method=method, data=None if body is None else json.dumps(body).encode()
    )
    request.add_header("Content-Type", "application/json")
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=seconds)


def failed(why: str) -> typer.Exit:
    """Say why on standard error; to be raised."""
    typer.echo(f"callgate: {why}", err=True)
    return typer.Exit(WRONG)


def words_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"the server answered {error.code}"
