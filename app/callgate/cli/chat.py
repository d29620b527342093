"""`callgate chat`: a conversation in the terminal that also shows the tool calls.

It is an HTTP client of a server. Without an address it starts a server of its own.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
import threading
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from callgate.cli.options import ConfigOption
from callgate.cli.server_client import (
    KeyOption,
    ServerRefused,
    ask_server,
    fail_with,
    fetch_answer,
    hint_at_start,
    open_request,
    read_answer,
)
from callgate.cli.shared import read_config
from callgate.telemetry.terminal import in_a_line, say, shown

if TYPE_CHECKING:
    from callgate.tools.approvals.form_filling import FormFilling

START_SECONDS = 30.0
STREAM_SECONDS = 120.0
"""The longest silence of a stream; servers send heartbeats more often."""
LINE_BYTES = 4096
HELP = "/help says this again, /new starts over, /quit ends (so does Ctrl-D); Ctrl-C stops an answer."
_COMMAND = re.compile(r"/[A-Za-z?][\w-]*")
"""What is meant as a command; a path, or a message with more words, is none."""


def chat(
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Default: the first that is listed.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="A running server. Default: one of its own.")
    ] = None,
    key: KeyOption = None,
    config: ConfigOption = None,
) -> None:
    """Talk to a model, and see what its tools do."""
    with contextlib.ExitStack() as stack:
        address = url or stack.enter_context(_own_server(config))
        names = [entry["id"] for entry in ask_server("GET", "/v1/models", address, key)["data"]]
        chosen = model or next(iter(names), None)
        if chosen is None:
            raise fail_with("the server lists no model; name one with --model")
        _note(f"{chosen} at {address}. {HELP}")
        _ChatSession(address, key, chosen).go_on()


class _ChatSession:
    """One conversation."""

    def __init__(self, url: str, key: str | None, model: str) -> None:
        self._url = url
        self._key = key
        self._model = model
        self._messages: list[dict[str, str]] = []

    def go_on(self) -> None:
        while (typed_line := _line()) is not None:
            match typed_line.strip():
                case "":
                    continue
                case "/quit" | "/exit":
                    return
                case "/new":
                    self._messages = []
                    _note("a new conversation")
                case "/help":
                    _note(HELP)
                case text if _COMMAND.fullmatch(text):
                    _note(f"there is no {text}. {HELP}")
                case text:
                    self._answer(text)

    def _answer(self, text: str) -> None:
        """Send a message and print the answer. Without an answer the message is dropped, and can be sent again."""
        messages = [*self._messages, {"role": "user", "content": text}]
        body = {"model": self._model, "messages": messages, "stream": True}
        from callgate.http.event_stream import EventTooLarge
        from callgate.http.interface import TransportError

        pieces: list[str] = []
        try:
            asyncio.run(self._print(body, pieces))
        except KeyboardInterrupt:
            _note("\nstopped")
            return
        except ServerRefused as error:
            _note(str(error))
            return
        except (TransportError, EventTooLarge, ValueError) as error:
            _note(f"the connection was lost: {error}{hint_at_start(error)}")
            return
        say()
        if pieces:
            self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]

    async def _print(self, body: dict[str, Any], pieces: list[str]) -> None:
        """Print and collect the text of an answer, and print the events of tools."""
        chunks = _Chunks()
        reading = asyncio.create_task(self._read_into(chunks, body))
        try:
            async for chunk in chunks:
                for piece in _shown(chunk):
                    pieces.append(piece)
                    say(piece, nl=False)
                progress = chunk.get("x_callgate") or {}
                id = progress.get("approval") or progress.get("input")
                if id and sys.stdin.isatty():
                    await self._decide(id, chunks.until_it_waits_no_more(progress["call"]))
            await reading
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    async def _read_into(self, chunks: "_Chunks", body: dict[str, Any]) -> None:
        from callgate.http.event_stream import EventStreamReader

        progress = {"X-Callgate-Events": "x"}
        reader = EventStreamReader()
        try:
            opening = open_request("POST", "/v1/chat/completions", self._url, self._key, body, progress, STREAM_SECONDS)
            async with opening as response:
                async for data in response.chunks():
                    for payload in reader.feed(data):
                        if payload.data.startswith(b"{"):
                            chunks.put(read_answer(payload.data))
        finally:
            chunks.put(None)

    async def _decide(self, id: str, waits_no_more: Coroutine[Any, Any, None]) -> None:
        """Ask the user about a waiting call, as long as it waits. The decision includes the hash of what was shown."""
        ending = asyncio.create_task(waits_no_more)
        typing: asyncio.Task[str] | None = None
        try:
            listed = await fetch_answer("GET", "/v1/approvals", self._url, self._key)
            waiting = next((call for call in listed["data"] if call["id"] == id), None)
            if waiting is None:
                return  # decided elsewhere meanwhile
            _forget_typed()
            asking = _Asking(waiting)
            while (prompt := asking.prompt()) is not None:
                _note(prompt, nl=False)
                typing = asyncio.create_task(_typed())
                await asyncio.wait({typing, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not typing.done():
                    _note("\n  it waits no more: somebody else has decided, or its time is over")
                    return
                asking.feed(typing.result().strip())
            body = {**asking.decision, "hash": waiting["hash"]}
            decided = await fetch_answer("POST", f"/v1/approvals/{id}", self._url, self._key, body)
            _note(f"  {decided['decision']}")
        except ServerRefused as error:
            _note(f"  {error}")  # this key may not decide, or it is too late
        finally:
            tasks = [task for task in (ending, typing) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class _Asking:
    """What the user is asked about a call that waits: whether it may run, or what it asks itself."""

    def __init__(self, waiting: dict[str, Any]) -> None:
        self._waiting = waiting
        self._filling: FormFilling | None = None
        self._problem = ""
        self.decision: dict[str, Any] = {}

    def prompt(self) -> str | None:
        """Return the next thing to ask; None where there is a decision."""
        if self._filling is None:
            return None if self.decision else self._first_prompt()
        prompt = self._filling.prompt()
        if prompt is None:
            self.decision["content"] = self._filling.content
            return None
        return f"{self._problem}    {prompt}"

    def feed(self, line: str) -> None:
        """Take what was typed."""
        if self._filling is not None:
            problem = self._filling.feed(line)
            self._problem = f"    {problem}\n" if problem else ""
            return
        agreed = line.lower() in {"y", "yes"}
        if self._waiting["kind"] != "input":
            self.decision = {"decision": "approve" if agreed else "deny"}
            return
        self.decision = {"decision": "answer" if agreed else "decline"}
        if agreed and self._waiting["mode"] == "form":
            from callgate.tools.approvals.form_filling import FormFilling

            self._filling = FormFilling(self._waiting["schema"])

    def _first_prompt(self) -> str:
        waiting = self._waiting
        if waiting["kind"] != "input":
            arguments = in_a_line(json.dumps(waiting["arguments"], ensure_ascii=False))
            return f"  run {waiting['tool']} {arguments} ({waiting['safety']})? [y/N] "
        from callgate.tools.approvals.form_filling import question_lines

        lines = "".join(f"  {in_a_line(line)}\n" for line in question_lines(waiting))
        if waiting["mode"] == "url":
            return f"{lines}  did you open it? [y/N] "
        return f"{lines}  answer? [y/N] "


class _Chunks:
    """The chunks of an answer, in order, with look-ahead while the user is asked."""

    def __init__(self) -> None:
        self._coming: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._seen: deque[dict[str, Any] | None] = deque()

    def put(self, chunk: dict[str, Any] | None) -> None:
        """Add a chunk; None is the end."""
        self._coming.put_nowait(chunk)

    def __aiter__(self) -> "_Chunks":
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self._seen:
            chunk = self._seen.popleft()
        else:
            chunk = await self._coming.get()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def until_it_waits_no_more(self, call: str) -> None:
        """Look ahead for the chunk by which a call runs or has ended."""
        while True:
            chunk = await self._coming.get()
            self._seen.append(chunk)
            if chunk is None:
                return
            progress = chunk.get("x_callgate") or {}
            if progress.get("call") == call and "approval" not in progress and "input" not in progress:
                return


def _shown(chunk: dict[str, Any]) -> Iterator[str]:
    if "error" in chunk:
        _note(f"\n{chunk['error']['message']!s}")
    elif (progress := chunk.get("x_callgate")) and "phase" in progress:
        _note(_progress_line(progress))
    elif progress:
        for line in _broken_lines(progress):
            _note(line)
    for choice in chunk.get("choices", ()):
        if text := choice.get("delta", {}).get("content"):
            yield text


FLAWS: Final = {
    "truncated": "cut off",
    "schema_mismatch": "its arguments do not fit its parameters",
    "unknown_tool": "there is no such tool",
}
"""Why a call was not run, in words; another flaw is told by its name."""


def _broken_lines(diagnostics: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each call of an answer that was broken, out of what stands in its last chunk."""
    at_start = "\n"
    for number, turn in enumerate(diagnostics.get("turns", ()), start=1):
        for call in turn.get("calls", ()):
            if call.get("verdict") == "broken":
                flaw = call.get("flaw", "")
                why = FLAWS.get(flaw, flaw.replace("_", " "))
                yield f"{at_start}  ✗ {call.get('name') or '(no name)'}: {why}, not run (turn {number})"
                at_start = ""


def _progress_line(progress: dict[str, Any]) -> str:
    match progress["phase"]:
        case "start":
            return f"  {progress['name']} …"
        case "progress":
            return f"  {progress['name']}: {_how_far(progress)}"
        case "done":
            return f"  {progress['name']} done in {progress['ms']:g} ms"
        case _:
            return f"  {progress['name']} failed after {progress['ms']:g} ms"


def _how_far(progress: dict[str, Any]) -> str:
    """Return what a tool says of its progress, and how much of it is done; it may say one of both alone."""
    parts = [str(progress["message"])] if progress.get("message") else []
    fraction = progress.get("fraction")
    if isinstance(fraction, int | float):
        parts.append(f"{fraction:.0%}")
    return " ".join(parts) or "working …"


def _line() -> str | None:
    prompt = ""
    if sys.stdin.isatty():
        prompt = "> "
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives `input` its editing and its history
    try:
        return input(prompt)
    except EOFError:
        return None
    except KeyboardInterrupt:
        return None


def _forget_typed() -> None:
    """Discard input from before the question."""
    with contextlib.suppress(ImportError):  # not there on Windows
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)


async def _typed() -> str:
    """Read a line from the terminal, without blocking Ctrl-C."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(os.read(descriptor, LINE_BYTES))

    loop.add_reader(descriptor, read)
    try:
        return (await line).decode(errors="replace")
    finally:
        loop.remove_reader(descriptor)


def _note(text: str, *, nl: bool = True) -> None:
    """Print a note on standard error, dimmed on a terminal."""
    typer.secho(shown(text), err=True, nl=nl, dim=sys.stderr.isatty() or None)


# A server of its own -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _own_server(path: Any) -> Iterator[str]:
    """Run a server for one config on a loopback port during the conversation."""
    import uvicorn

    from callgate.access.oidc.settings import AuthSection
    from callgate.application import create_app
    from callgate.cli.own_tools import keep_quiet

    loaded = read_config(path)
    keep_quiet(loaded)
    options: dict[str, Any] = {"lifespan": "on", "log_config": None, "access_log": False, "ws": "none"}
    # The config without what another server with the same file may be using.
    server_section = loaded.config.server.model_copy(update={"host": "127.0.0.1", "port": 0, "public_url": None})
    private = {"server": server_section, "auth": AuthSection(mode="off"), "keys": (), "data_dir": None}
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(loaded.config.model_copy(update=private)),
            timeout_graceful_shutdown=2,
            **options,
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="own server")
        running.start()
        try:
            _wait_for(server, running)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            running.join()


def _wait_for(server: Any, running: threading.Thread) -> None:
    waiting = threading.Event()
    for _ in range(int(START_SECONDS * 20)):
        if server.started:
            return
        if not running.is_alive():
            break
        waiting.wait(0.05)
    raise fail_with("its own server did not start; `callgate check` may say why")
