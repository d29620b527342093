"""Runs the application under uvicorn, from the first socket to the exit code."""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import structlog
import uvicorn
from msgspec.structs import replace

from callgate.api.bodies import OF_ALL
from callgate.application import create_app
from callgate.config import redaction
from callgate.config.load import Loaded
from callgate.config.redaction import Redactor
from callgate.models import litellm_model, resolve
from callgate.models.building import model_entries
from callgate.runtime.reload import ConfigSource
from callgate.server import ConnectionLimits, ProtocolFactory
from callgate.server.banner import banner, tools_banner
from callgate.server.limits import LINGERING
from callgate.server.siblings import Siblings
from callgate.server.workers import BACKLOG, Workers, bound_to, share_of
from callgate.telemetry import logs
from callgate.telemetry.terminal import say

log = structlog.get_logger("callgate.server")

MOST_HOLDERS = 3
"""The most processes that are named which have the port."""
ORPHAN_SECONDS = 2.0
"""How long a start waits for its port while workers of the same user have it, whose parent may have died."""
UNSENT_BYTES = 131_072
"""Bytes of a response that the system buffers for a slow client. Its default is megabytes, and as much is read of the model."""
GARBAGE_OBJECTS = 50_000
"""The threshold of the garbage collector's first generation: more than hundreds of requests under way have, which it would search as
often as they are answered. What a request leaves is freed without it (`tests/e2e/test_leaves_no_cycles.py`)."""
YOUNG_COLLECTIONS = 2
"""Collections of the first generation to one of the second."""
OLDER_COLLECTIONS = 20
"""Collections of the second generation to one of all objects."""
ACCEPTED_AT_ONCE = 16
"""Connections that are accepted in one turn of the event loop, of each address. uvloop accepts one for each socket that listens, so that
the last of hundreds would wait for as many turns, in which those before them are answered over and over."""
CUT_OFF = 4
"""The exit code when requests were still running at the end of the drain."""
LOOK_SECONDS = 0.1
"""How often a draining server checks whether it should end at once."""
ENDING_SECONDS = 5.0
"""The timeout for cancelled requests to end, and then for closing tool servers and connections."""
AT_ONCE_SECONDS = 2.0
"""The timeout for all of it after a second signal."""

MAX_RESERVE = 256
"""Connections beyond the limit that are read, to answer health checks."""
OTHER_FILES = 256
"""Open files for tools, the ledger and others; a quarter of them where few files are allowed."""
LAST_LINES_SECONDS = 0.2
"""The timeout for writing queued log lines, which may have no reader."""


def serve(loaded: Loaded, read_config: Callable[[], Loaded] | None = None) -> int:
    """Serve until stopped; `read_config` reads the config again.

    The exit code: 0 after an orderly end, 1 when it could not start, 2 where the config forbids it, `CUT_OFF` when requests were
    still running at the end of the drain, 128 and the signal's number when a second signal ended it at once. Of several
    workers it is the worst.
    """
    config = loaded.config
    redactor = redaction.current
    redactor.add(*loaded.secrets)
    logs.configure(redactor, level=config.logging.level, format=config.logging.format)
    if config.data_dir is not None and (mistake := _unusable(Path(config.data_dir))):
        say(f"callgate: data_dir: {mistake}", err=True)
        return 1
    listening = _listen(config.server.host, config.server.port)
    if listening is None:
        return 1
    if config.server.workers == 1:
        with listening:
            return _serve_on(listening, loaded, read_config, redactor)
    host, port = listening.getsockname()[:2]
    listening.close()  # the port is free; from here on the workers share it
    with bound_to(host, port, listening.family) as address:
        if any(resolve.lane_of(entry) not in {"direct", "responses"} for entry in model_entries(config)):
            asyncio.run(litellm_model.loaded())  # once, and not in each worker

        def work(siblings: Siblings, listening: socket.socket) -> int:
            def shared(loaded: Loaded) -> Loaded:
                return replace(loaded, config=share_of(loaded.config, siblings.place, siblings.count))

            again = None if read_config is None else lambda: shared(read_config())
            return _serve_on(listening, shared(loaded), again, redactor, siblings)

        def announce() -> None:
            say(banner(loaded, address), err=True)

        return Workers(work, config.server.workers, address, announce).run()


def _serve_on(
    listening: socket.socket,
    loaded: Loaded,
    read_config: Callable[[], Loaded] | None,
    redactor: Redactor,
    siblings: Siblings | None = None,
) -> int:
    """Serve in this process."""
    config = loaded.config
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections inherit it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    app = create_app(config, None if read_config is None else _source(loaded, read_config, redactor), siblings)
    if read_config is not None:
        signal.signal(signal.SIGHUP, lambda *_: app.state.manager.ask_to_reload())
    connections, reserve, files = _affordable(config.server.connections)
    if connections < config.server.connections:
        log.warning(
            "connections_limited", connections=connections, configured=config.server.connections, open_files=files,
            todo="raise the limit of open files (ulimit -n, LimitNOFILE=), or lower server.connections",
        )  # fmt: skip
    factory = ProtocolFactory(
        ConnectionLimits(
            header_bytes=config.server.header_bytes,
            header_seconds=config.server.header_seconds,
            body_seconds=config.server.body_seconds,
            idle_seconds=config.server.idle_seconds,
            connections=connections,
            key_share=config.server.key_share,
            reserve=reserve,
            unread_bytes=OF_ALL * config.limits.body_bytes,
        )
    )

    def refuse_new_requests() -> None:
        app.state.manager.begin_draining()
        factory.draining = True

    def is_orphan() -> bool:
        return siblings is not None and siblings.have_no_parent()

    if siblings is None:  # after the signal handlers are set
        say(banner(loaded, listening), err=True)
    first = siblings is None or siblings.place == 0
    server = DrainingServer(
        uvicorn.Config(
            app.outermost,
            loop="uvloop",
            http=factory.protocol,  # type: ignore[arg-type]  # called like the class it stands for
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # forwarded addresses are not trusted
        ),
        config.server.drain_seconds,
        refuse_new_requests,
        lambda: tools_banner(app.state.manager.current.registry) if first else "",
        is_orphan,
    )
    try:
        server.run(sockets=[listening])
    except SystemExit:  # from uvicorn when the application did not start, which has been logged
        return 1
    return server.exit_code


class DrainingServer(uvicorn.Server):
    """Drains: after the first signal new requests are refused, running ones may finish, and then the application is closed.

    The socket stays open meanwhile, so that health checks see that the server is not ready, and other clients get a 503 and
    may retry elsewhere; that of an orphan is closed at once, because another server is to be started on its port. A second
    signal ends it at once.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_seconds: float,
        refuse_new_requests: Callable[[], None],
        tools_banner: Callable[[], str],
        is_orphan: Callable[[], bool],
    ) -> None:
        """`is_orphan`: whether the parent of this worker has died."""
        super().__init__(config)
        self.servers = []  # uvicorn has none until it has started
        self._tools_banner = tools_banner
        self._is_orphan = is_orphan
        self._drain_seconds = drain_seconds
        self._refuse_new_requests = refuse_new_requests
        self._ended_by = 0
        self._cut_off = False

    @property
    def exit_code(self) -> int:
        if not self.started:
            return 1
        if self._ended_by:
            return 128 + self._ended_by
        if self._cut_off:
            return CUT_OFF
        return 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._refuse_new_requests()
        self._give_port_back()
        # Set before the message is written, because the second signal may follow at once.
        is_second = self.should_exit
        self.should_exit = True
        # Print what the signal does.
        running = len(self.server_state.tasks)
        requests = f"{running} requests under way"
        if running == 1:
            requests = "1 request under way"
        if is_second:
            if running:
                notice = f"ending now, with {requests} cut off"
            else:
                notice = "ending now"
        else:
            if sig == signal.SIGINT:
                again = "Ctrl-C again"
            else:
                again = "a second signal"
            if not running:
                notice = f"stopping, nothing is under way; {again} ends it now"
            else:
                notice = f"stopping, waiting at most {self._drain_seconds:g} s for {requests}; {again} ends it now"
        # Written directly, because the signal may have interrupted another write.
        with contextlib.suppress(OSError):  # stderr may be closed
            os.write(2, f"callgate: {notice}\n".encode())
        if is_second:
            self.force_exit = True
            self._ended_by = sig
            _leave_no_later_than(AT_ONCE_SECONDS, 128 + sig)
        else:
            _leave_no_later_than(self._drain_seconds + 3 * ENDING_SECONDS, CUT_OFF)

    def _give_port_back(self) -> None:
        """Close the socket of a worker whose parent has died."""
        if self._is_orphan():
            for server in self.servers:
                server.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=None if sockets is None else accepting_many(sockets))
        if self.started and (tools := self._tools_banner()):
            say(tools, err=True)
        # All objects so far stay alive. Excluding them from garbage collection saves pauses of tens of milliseconds.
        gc.freeze()
        gc.enable()
        gc.set_threshold(GARBAGE_OBJECTS, YOUNG_COLLECTIONS, OLDER_COLLECTIONS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Idle connections stay open until the end, because a request may be on its way.
        await self._until(lambda: not self.server_state.tasks, self._drain_seconds)
        cut = set(self.server_state.tasks)
        for task in cut:
            task.cancel()
        self._cut_off = bool(cut)
        if cut:
            await asyncio.wait(cut, timeout=ENDING_SECONDS)
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        # The last responses may not have been sent yet.
        await self._until(lambda: not self.server_state.connections, ENDING_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await self.lifespan.shutdown()

    async def _until(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Wait until `is_done` is true, with a timeout, and not at all after a second signal."""
        deadline = asyncio.get_running_loop().time() + seconds
        # Polled, as uvicorn does: there is no event for the end of its tasks and connections.
        while not is_done() and not self.force_exit and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)


def accepting_many(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Return the sockets that listen, each as often as connections are to be accepted in one turn."""
    return [*sockets, *(listening.dup() for listening in sockets for _ in range(ACCEPTED_AT_ONCE - 1))]


def _leave_no_later_than(seconds: float, code: int) -> None:
    """End the process after a timeout, even if a tool blocks the event loop."""
    timer = threading.Timer(seconds, _leave, (code,))
    timer.daemon = True
    timer.start()


def _leave(code: int) -> None:
    last_lines = threading.Thread(target=logs.write_all, daemon=True)
    last_lines.start()
    last_lines.join(LAST_LINES_SECONDS)
    os._exit(code)


def _source(loaded: Loaded, read_config: Callable[[], Loaded], redactor: Redactor) -> ConfigSource:
    """Return the source of the config. Secrets of earlier configs stay masked in logs."""
    newest = loaded

    def files() -> tuple[Path, ...]:
        return newest.files()

    def on_read(loaded: Loaded) -> None:
        redactor.add(*loaded.secrets)

    def on_applied(loaded: Loaded) -> None:
        nonlocal newest
        newest = loaded
        logs.configure(redactor, level=loaded.config.logging.level, format=loaded.config.logging.format)

    return ConfigSource(read_config, files, on_read, on_applied)


def _affordable(connections: int) -> tuple[int, int, int]:
    """Return how many connections the limit of open files leaves, how many are read beyond that, and the limit.

    Each connection may need one towards a model. The rest is for tools, the ledger and what else is open.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + MAX_RESERVE + LINGERING + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard == resource.RLIM_INFINITY:
            soft = needed
        else:
            soft = min(needed, hard)
        with contextlib.suppress(ValueError, OSError):  # a container may forbid it; the limit is read again below
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return connections, MAX_RESERVE, soft
    reserve = min(MAX_RESERVE, soft // 8)
    return max(1, min(connections, (soft - min(OTHER_FILES, soft // 4) - reserve) // 2)), reserve, soft


def _unusable(folder: Path) -> str:
    """Return why a folder cannot be used; empty if it can. Where it is only not writable what can be served is."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        return f"{folder}: {os.strerror(error.errno or 0)}"
    if os.access(folder, os.X_OK):
        return ""
    return f"{folder}: it cannot be entered"


def _listen(host: str, port: int) -> socket.socket | None:
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        listening = _listen_after_orphans(host, port, family, both=both)
    except OSError as error:
        advice = {
            errno.EACCES: "ports below 1024 are the system's; --port chooses another",
            errno.EADDRNOTAVAIL: "this machine has no such address; 127.0.0.1 is this machine alone, 0.0.0.0 all its addresses",
        }.get(error.errno or 0, "")
        if error.errno == errno.EADDRINUSE:
            advice = f"{_holder(port)}; --port chooses another, `callgate health` says whether it is a Callgate"
        if error.errno and error.errno > 0:
            why = os.strerror(error.errno)
        else:
            why = str(error)
        if advice:
            why = f"{why} ({advice})"
        say(f"callgate: cannot listen on {host}:{port}: {why}", err=True)
        return None
    listening.setblocking(False)
    return listening


def _holder(port: int) -> str:
    """Say who has a port. A worker whose parent died gives it back unless it is stopped."""
    from callgate.server.port_holders import holders_of

    holders = holders_of(port)
    if not holders:
        return "another program has it"
    return f"another program has it: {'; '.join(map(str, holders[:MOST_HOLDERS]))}"


def _listen_after_orphans(host: str, port: int, family: int, *, both: bool) -> socket.socket:
    """Listen on the port. Workers whose parent died give it back as soon as they notice; until then wait, and try again."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline or not _shares_port(host, port, family):
                raise
        time.sleep(LOOK_SECONDS)


def _shares_port(host: str, port: int, family: int) -> bool:
    """Return whether those who have a port share it with others of this user, as only workers do."""
    try:
        bound_to(host, port, family).close()
    except OSError:
        return False
    return True
