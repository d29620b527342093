"""Running the application under uvicorn, from the first socket to the exit code."""

import os
import signal
import socket
import sys
from types import FrameType

import uvicorn

from app import __version__
from app.config.load import Loaded
from app.main import create_app
from app.telemetry import logs
from app.telemetry.redaction import Redactor

BACKLOG = 2048


def serve(loaded: Loaded) -> int:
    """Serve until told to stop. The exit code: 0 after an orderly end, 1 when it could not start."""
    config = loaded.config
    logs.configure(Redactor(loaded.secrets), level=config.logging.level, format=config.logging.format)
    listening = _listen(config.server.host, config.server.port)
    if listening is None:
        return 1
    # Before uvicorn leaves it gives signals back to whoever had them. That is us: an orderly end is no death by signal.
    signal.signal(signal.SIGTERM, _ended_in_order)
    signal.signal(signal.SIGINT, _ended_in_order)
    app = create_app(config)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(config.server.drain_seconds)),
        )
    )
    with listening:
        print(_banner(loaded, listening), file=sys.stderr, flush=True)
        server.run(sockets=[listening])
    return 0 if server.started else 1


def _listen(host: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        print(f"callgate: cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return None
    listening.setblocking(False)
    return listening


def _ended_in_order(_: int, __: FrameType | None) -> None:
    """Nothing is left to do."""


def _banner(loaded: Loaded, listening: socket.socket) -> str:
    config = loaded.config
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    models = ", ".join(dict.fromkeys(entry.model_name for entry in config.model_list))
    auth = "off" if config.auth == "off" else f"{len(config.keys)} key(s)" if config.keys else "none needed on loopback"
    return "\n".join(
        (
            f"Callgate {__version__} on http://{shown}:{port}  (OpenAI base_url: http://{shown}:{port}/v1)",
            f"  config  {loaded.path or 'built in: the demo model and its tools'}",
            f"  models  {models}",
            f"  keys    {auth}",
        )
    )
