"""Reads a file of MCP servers of another program, such as an editor: JSON with comments.

Its servers are added to those of the config, and mistakes are reported with their places in it. It is read by the same parser
as the config, because JSON without comments and tabs is YAML.
"""

import re
from pathlib import Path
from typing import Any, Final

from callgate.config.document import Document, read_document
from callgate.config.files import read_text
from callgate.config.problems import ConfigError, Problem, Spot
from callgate.config.references import References

SETTING: Final = "mcp_config"
BLOCKS: Final = ("mcp_servers", "mcpServers", "servers")
"""Names of the block of servers, here and in other programs."""
_NESTED: Final = "mcp"
"""The parent of the block in an editor's settings: `{"mcp": {"servers": …}}`."""
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|\t', re.DOTALL)
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_NOT_A_LINE_BREAK = re.compile(r"[^\n]")


def take_in_servers(document: Document, folder: Path, references: References) -> None:
    """Add the servers of the file that `mcp_config` names to those of the config."""
    if not isinstance(document.value, dict) or not isinstance(document.value.get(SETTING), str):
        return
    file = folder / Path(document.value[SETTING]).expanduser()
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            why = error.strerror
        else:
            why = "it is not UTF-8 text"
        document.problems.append(Problem(document.values[SETTING,], SETTING, f"cannot read {file}: {why}"))
        return
    try:
        file_document = read_document(as_yaml(text), str(file), references.beside(file))
    except ConfigError as error:
        document.problems += error.problems
        return
    _merge(document, file_document)


def as_yaml(text: str) -> str:
    """Convert JSON with comments to YAML, with the same lines and columns."""
    return _TOKEN.sub(_as_yaml, text)


def _as_yaml(token: re.Match[str]) -> str:
    if token[0].startswith('"'):
        return _SURROGATES.sub(_joined, token[0])
    return _NOT_A_LINE_BREAK.sub(" ", token[0])


def _joined(pair: re.Match[str]) -> str:
    high = int(pair[1], 16)
    low = int(pair[2], 16)
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _merge(document: Document, addition: Document) -> None:
    block, servers = servers_of(addition.value)
    document.problems += addition.problems
    document.secrets |= addition.secrets
    if block is None:
        names = ", ".join(f"`{name}`" for name in BLOCKS[1:])
        problem = Problem(Spot(addition.source), "", f"has no servers: they are looked for under {names}")
        document.problems.append(problem)
        return
    own = next((name for name in BLOCKS if name in document.value), BLOCKS[0])
    ours = document.value.get(own) or {}
    if not isinstance(servers, dict):
        document.problems.append(
            Problem(addition.values[block], ".".join(block), "should be a mapping of names to servers")
        )
        return
    if not isinstance(ours, dict):
        return  # reported when the config is validated
    for name in servers.keys() & ours.keys():
        spot = addition.keys[(*block, name)]
        document.problems.append(Problem(spot, f"{own}.{name}", "the config has a server of this name too"))
    document.value[own] = {**servers, **ours}
    for mine, theirs in ((document.keys, addition.keys), (document.values, addition.values)):
        for path, spot in theirs.items():
            if path[: len(block)] == block:
                mine.setdefault((own, *path[len(block) :]), spot)
    document.referred |= {(own, *path[len(block) :]) for path in addition.referred if path[: len(block)] == block}


def servers_of(whole: Any) -> tuple[tuple[str, ...] | None, Any]:
    """Return the path of the block of servers in such a file, and the block."""
    if not isinstance(whole, dict):
        return None, None
    for name in BLOCKS:
        if name in whole:
            return (name,), whole[name] or {}
    inner = whole.get(_NESTED)
    if isinstance(inner, dict) and "servers" in inner:
        return (_NESTED, "servers"), inner["servers"] or {}
    return None, None
