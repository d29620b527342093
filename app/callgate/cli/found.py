"""Finds local model servers on their usual ports, and the MCP servers of other programs, for a first config."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from callgate.cli.providers import PROVIDERS
from callgate.config.document import LIMIT
from callgate.config.files import read_text
from callgate.config.mcp_file import as_yaml, servers_of
from callgate.config.references import BadReference, References
from callgate.http.client import HttpClient
from callgate.http.interface import Deadlines, TransportError
from callgate.models.providers import ROWS
from callgate.tools.kinds.mcp.settings import OF_OTHER_CLIENTS, McpServer
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.pydantic_readers import check_model
from callgate.untrusted.readers import read_leniently
from callgate.untrusted.yaml_readers import OversizedText, read_yaml

LOOK_SECONDS = 1.5
"""The timeout for a local server to list its models."""
LIST_BYTES = 4_000_000
MODEL_LIST = Door(name="a list of models", bytes=LIST_BYTES)
MOST_MODELS = 20
"""The limit of models of one server."""
OWNERS = {row.offer.owned_by: row.offer.name for row in ROWS if row.offer is not None and row.offer.owned_by} | {
    "callgate": None
}
"""The `owned_by` values of servers that share a usual port."""
_FOR_EDITORS = re.compile(r"\$\{(?:input:(?P<input>[^}]+)|(?P<folder>workspaceFolder|cwd)|(?P<home>userHome))\}")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server of models that answered."""

    provider: str
    url: str
    models: tuple[str, ...]


@dataclass(slots=True)
class ServersFile:
    """The MCP servers of another program's file: those that can be taken over, and why the others cannot."""

    program: str
    path: Path
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)


async def local_servers() -> list[LocalServer]:
    """The servers of models that listen on this machine, on the ports they usually have."""
    client = HttpClient()  # without the environment's proxies
    try:
        servers = await asyncio.gather(
            *(_models_listed_by(name, client) for name, provider in PROVIDERS.items() if provider.port)
        )
    finally:
        await client.close()
    return [server for server in servers if server is not None]


async def models_at(url: str) -> tuple[str, ...]:
    """Return the models that a server lists; none where it does not answer."""
    client = HttpClient()
    try:
        return tuple(name for name, _ in await _models(url, client))
    finally:
        await client.close()


async def _models_listed_by(provider: str, client: HttpClient) -> LocalServer | None:
    url = PROVIDERS[provider].local_url()
    assert url is not None, "only those with a port are looked for"
    listed = await _models(url, client)
    for _, owner in listed:
        recognized = OWNERS.get(owner, provider)
        if recognized is None:
            return None
        provider = recognized
    names = [name for name, _ in listed if "embed" not in name.lower()]
    if names:
        return LocalServer(provider, url, tuple(names[:MOST_MODELS]))
    return None


async def _models(url: str, client: HttpClient) -> list[tuple[str, str]]:
    patience = Deadlines(connect=LOOK_SECONDS, first_byte=LOOK_SECONDS, idle=LOOK_SECONDS, total=LOOK_SECONDS)
    try:
        async with client.get(f"{url.rstrip('/')}/models", {}, patience) as answer:
            if answer.status != 200:
                return []
            listed = read_leniently(Untrusted(await answer.read(LIST_BYTES), MODEL_LIST).open())
        return [(str(model["id"]), str(model.get("owned_by", "")).lower()) for model in listed["data"]]
    except (TransportError, ValueError, KeyError, TypeError, AttributeError):
        return []  # no server, or no model server


def usual_files(home: Path | None = None, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, Path]]:
    """Yield the existing files in which other programs keep their MCP servers, with the programs' names."""
    home = home or Path.home()
    if sys.platform == "darwin":
        programs = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        programs = Path(environ.get("APPDATA", home / "AppData" / "Roaming"))
    else:
        programs = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = (
        ("Claude Desktop", programs / "Claude" / "claude_desktop_config.json"),
        ("Cursor", home / ".cursor" / "mcp.json"),
        ("Cursor", Path(".cursor") / "mcp.json"),
        ("VS Code", programs / "Code" / "User" / "mcp.json"),
        ("VS Code", programs / "Code" / "User" / "settings.json"),
        ("VS Code", Path(".vscode") / "mcp.json"),
    )
    yield from ((program, path) for program, path in places if path.is_file())


def read_servers(program: str, path: Path, folder: Path, environ: Mapping[str, str] = os.environ) -> ServersFile:
    """Read the servers of a file, for a config in `folder`. Raises `ValueError` for an unreadable file."""
    try:
        text = as_yaml(read_text(path))
        whole = read_yaml(LIMIT.open_yaml(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OversizedText) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    _, block = servers_of(whole)
    file = ServersFile(program, path)
    references = References(environ, folder)
    if not isinstance(block, dict):
        return file
    for name, entry in block.items():
        if not isinstance(entry, dict):
            file.left_out[str(name)] = ({}, "it is no mapping")
            continue
        server = {key: _for_a_server(value) for key, value in entry.items() if key not in OF_OTHER_CLIENTS}
        try:
            check_model(McpServer, _resolved(server, references))
        except BadReference as error:
            file.left_out[str(name)] = (server, str(error))
        except ValidationError as error:
            first = error.errors()[0]
            file.left_out[str(name)] = (server, f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": "))
        else:
            file.servers[str(name)] = server
    return file


def _for_a_server(value: Any) -> Any:
    """Replace an editor's placeholders: prompts by environment variables, folders by their paths."""
    match value:
        case str():
            return _FOR_EDITORS.sub(_filled_in, value)
        case dict():
            return {key: _for_a_server(inner) for key, inner in value.items()}
        case list():
            return [_for_a_server(inner) for inner in value]
        case _:
            return value


def _filled_in(place: re.Match[str]) -> str:
    if place["input"]:
        return f"${{{re.sub(r'[^A-Za-z0-9]+', '_', place['input']).upper()}}}"
    if place["folder"]:
        return str(Path.cwd())
    return str(Path.home())


def _resolved(value: Any, references: References) -> Any:
    match value:
        case str():
            return references.resolve(value).text
        case dict():
            return {key: _resolved(inner, references) for key, inner in value.items()}
        case list():
            return [_resolved(inner, references) for inner in value]
        case _:
            return value
