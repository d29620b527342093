"""The banner of `callgate serve`: the address, the models and tools, and who may send requests."""

import socket
from pathlib import Path

from callgate import __version__
from callgate.access.key_store import DamagedStore, stored_keys
from callgate.config.load import Loaded
from callgate.config.schema.whole import Config
from callgate.tools.registry import Registry
from callgate.tools.source_supervisor import SourceState, SourceStatus
from callgate.tools.tool_names import CONFIG

HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, and not listened on
"""The loopback address for a wildcard address."""
MOST_NAMES = 12
"""The longest list of names; `callgate tools list` prints all of them."""
TRY_IT = """curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' \\
            -d '{{"model": "demo", "messages": [{{"role": "user", "content": "What is 2*21?"}}]}}'"""


def banner(loaded: Loaded, listening: socket.socket) -> str:
    """Return the banner with what is known before anything is opened."""
    config = loaded.config
    host, port = listening.getsockname()[:2]
    listens_on = _url(host, port)
    url = _url(HERE.get(host, host), port)
    offered = {entry.model_name: bool(entry.tools) for entry in config.model_list}
    models = [name if tools else f"{name} (no tools)" for name, tools in offered.items()]
    if loaded.from_command_line:
        source = "the command line"
    else:
        source = str(loaded.path or "built in: the demo model and its tools")
    lines = [
        f"Callgate {__version__} on {listens_on}  (OpenAI base_url: {url}/v1)",
        f"  config  {source}",
        *([f"  page    {url}/"] if config.server.page else []),
        f"  models  {_listed(models)}",
        f"  keys    {_keys(config)}",
    ]
    if loaded.path is None and not loaded.from_command_line:
        lines += [
            f"  try it  {TRY_IT.format(url=url)}",
            "  go on   callgate init    (writes a config.yaml with your models, tools and MCP servers)",
        ]
    return "\n".join(lines)


def _keys(config: Config) -> str:
    if config.auth.mode == "off":
        return "off: everyone is let in"
    keys = len(config.keys)
    if config.data_dir:
        try:
            keys += stored_keys(Path(config.data_dir))
        except (DamagedStore, OSError):
            return f"{keys}, and those of the key store, which cannot be read"
    oidc = config.auth.oidc
    if oidc is not None:
        return f"{keys}, and tokens of {oidc.issuer}"
    if not keys:
        return "none needed on loopback"
    return str(keys)


def tools_banner(registry: Registry) -> str:
    """List the tools with the states of their sources, after the first attempt to open those."""
    tools = registry.tools()
    own = [tool.name for tool in tools if tool.source == CONFIG]
    parts = [_listed(own)] if own else []
    for status in registry.sources():
        parts.append(_state(status, [tool.name for tool in tools if tool.source == status.name]))
    for status in registry.services():
        if status.state is not SourceState.READY:
            parts.append(_state(status, []))
    parts += [f"{broken.name} cannot be used: {broken.reason}" for broken in registry.quarantined()[:MOST_NAMES]]
    return "  tools   " + "\n          ".join(parts or ["none"])


def _state(status: SourceStatus, names: list[str]) -> str:
    what = f"{status.name} ({status.kind})"
    match status.state:
        case SourceState.READY:
            return f"{what}: {_listed(names) or 'ready, without any tool'}"
        case SourceState.DOWN:
            return f"{what}: down, tried again: {status.error}"
        case _:
            return f"{what}: {status.state}; its tools appear when it is ready" + (
                f" ({status.error})" if status.error else ""
            )


def _url(host: str, port: int) -> str:
    if ":" in host:
        return f"http://[{host}]:{port}"
    return f"http://{host}:{port}"


def _listed(names: list[str]) -> str:
    not_shown = len(names) - MOST_NAMES
    shown = ", ".join(names[:MOST_NAMES])
    if not_shown > 0:
        return f"{shown} and {not_shown} more"
    return shown
