"""Logging: one format for our lines and those of libraries, written to standard error with secrets masked.

Lines are JSON for machines, or coloured text on a terminal. The ids of a request and its run stand on every line that is
written on its behalf. The server's own access log is off: the API writes one line for each request.
"""

import asyncio
import atexit
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from math import inf
from typing import Any, Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from callgate.config.secret_names import means_secret
from callgate.telemetry.redaction import Redactor

_MAX_TEXT: Final = 16_384
"""What is longer is cut: a log line is for reading."""

_QUIET: Final = (
    "LiteLLM", "LiteLLM Proxy", "LiteLLM Router", "aiohttp", "httpcore", "httpcore2", "httpx", "httpx2", "openai",
    "watchfiles",
)  # fmt: skip
"""Libraries that say at `info` what we say better, and at `debug` whole conversations: only their warnings count."""

_SILENT: Final = ("client", "mcp")
"""The MCP SDK writes a traceback for every connection that breaks, and with it what came over it. That a tool server
went away, and why, is a line of ours."""

_WITH_HANDLERS: Final = ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router")

_SHORT_NUMBER: Final = 1000

_GATHERED_SECONDS: Final = 0.005
"""How long lines are gathered where they come all the time."""

_STANDARD_LEVELS: Final = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


def configure(redactor: Redactor, *, level: str = "info", format: str = "auto", stream: TextIO | None = None) -> None:
    """Set up logging for the whole process. May be done again, when the config is read again.

    `format` is `json`, `console`, or `auto`, which asks whether a person is watching. Without a `stream`, lines go to
    what `sys.stderr` is at that moment.
    """
    global _quick, _redactor  # noqa: PLW0603 - like structlog's own, this configuration is one for the process
    _redactor = redactor
    console = format == "console" or (format == "auto" and (stream or sys.stderr).isatty())
    processors = _processors(redactor, console=console, colors=(stream or sys.stderr).isatty())
    _quick = None if console else _Quick(redactor, logging.getLevelNamesMapping()[level.upper()], processors, stream)

    def make(name: str | None = None) -> _Lines:
        return _Lines(name, stream)

    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=make,
        cache_logger_on_first_use=False,
    )
    _bridge(logging.getLevelNamesMapping()[level.upper()], console=console)


_ids: ContextVar[dict[str, str] | None] = ContextVar("callgate_ids", default=None)

stand_on_every_line: Final[Callable[[dict[str, str]], object]] = _ids.set
"""From now on in this context; ids of our own, or masked. The dict is the caller's, who may add to it later: a run's id
is known after its request's. One variable for all of them, because each costs every request and every line."""


def masked(text: str) -> str:
    """A text with its secrets masked, as it would stand in a log line."""
    return str(_redactor.value(text))


def masked_value(value: Any) -> Any:
    """Lists and objects as plain data, with their secrets masked."""
    return _redactor.value(value)


_redactor = Redactor(())


TROUBLE: Final[Counter[tuple[str, str]]] = Counter()
"""How often each of our events was logged as a warning or an error: somebody may have to look."""
_TROUBLE_LEVELS: Final = frozenset({"warning", "error", "exception", "critical"})


class Log:
    """A logger for the lines that every request writes. What it writes is what structlog would write, at a fifth of the
    cost; where structlog is set up otherwise than by `configure` (a console, a test that listens), structlog does it.
    """

    __slots__ = ("_bound", "_name")

    def __init__(self, name: str, **bound: Any) -> None:
        self._name = name
        self._bound = bound

    def bind(self, **more: Any) -> "Log":
        return Log(self._name, **self._bound, **more)

    @staticmethod
    def enabled_for(number: int) -> bool:
        """True if a line of this level may be written, for those who would have to gather what it says."""
        return _quick is None or number >= _quick.threshold or _quick.processors[-1] is not _as_json

    def debug(self, event: str, **fields: Any) -> None:
        self._say("debug", logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._say("info", logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._say("warning", logging.WARNING, event, fields)

    def _say(self, level: str, number: int, event: str, fields: dict[str, Any]) -> None:
        quick = _quick
        if quick is None or quick.processors[-1] is not _as_json:
            getattr(structlog.get_logger(self._name), level)(event, **{**self._bound, **fields})
        elif number >= quick.threshold:
            quick.write(self._name, level, event, {**self._bound, **fields} if self._bound else fields)


class _Quick:
    """The processors below in one function, for lines without exceptions."""

    def __init__(self, redactor: Redactor, threshold: int, processors: list[Processor], stream: TextIO | None) -> None:
        self.threshold = threshold
        self._redactor = redactor
        self._open_names: set[str] = set()
        """Names of fields that do not mean secrets. Our own code names them, so they are few."""
        self.processors = processors
        """They end with `_as_json` while structlog has them; `capture_logs` exchanges them inside this very list."""
        self._lines = _Lines(None, stream)
        self._second = -1
        self._until_second = ""

    def write(self, name: str, level: str, event: str, fields: dict[str, Any]) -> None:
        if level == "warning":
            TROUBLE[level, event] += 1
        if event not in self._redactor.harmless:
            event = self._redactor.value(event)
        # As structlog's stamper writes it; the part up to the second is the same for all lines of that second.
        nanoseconds = time.time_ns()
        second, rest = divmod(nanoseconds, 1_000_000_000)
        if second != self._second:
            self._until_second = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
            self._second = second
        line: dict[str, Any] = {
            "timestamp": f"{self._until_second}{rest // 1000:06d}Z",
            "level": level,
            "event": event,
            "logger": name,
        }
        ours: Collection[str] = ()
        if (ids := _ids.get()) is not None:
            line |= ids
            ours = ids.values()  # stand on the line as they are
        line |= fields
        if not (fields.keys() <= self._open_names and self._are_harmless(fields, ours)):
            self._mask(fields, line, ours)
        self._lines.msg(_as_json(None, level, line))

    def _are_harmless(self, fields: dict[str, Any], ours: Iterable[str]) -> bool:
        """True if no value has to be looked at closely. Asked of all at once, because asking of each would cost more
        than all else about a line; what is left are times that were taken, and new values."""
        try:
            unknown = set(fields.values()).difference(self._redactor.harmless, ours)
        except TypeError:  # a list, or a mapping: not to be found in any set
            return False
        for value in unknown:
            if type(value) is str or not _is_plain(value):
                return False
            self._redactor.remember(value)
        return True

    def _mask(self, fields: dict[str, Any], line: dict[str, Any], ours: Collection[str]) -> None:
        """Mask the secrets in a line. Values found harmless are remembered from the next line on."""
        harmless = self._redactor.harmless
        for key, value in fields.items():
            if key not in self._open_names:
                if means_secret(key):
                    line[key] = self._redactor.value(value, key)
                    continue
                self._open_names.add(key)
            if type(value) is not str and _is_plain(value):
                self._redactor.remember(value)
            elif type(value) is not str or not (value in harmless or value in ours):
                line[key] = _cut(self._redactor.value(value, key))


def _is_plain(value: Any) -> bool:
    """Too short to be a secret: a yes or no, a small number, a time that we took."""
    kind = type(value)
    if kind is int or kind is float:
        return -_SHORT_NUMBER < value < _SHORT_NUMBER and (kind is int or int(value * 1000 + 0.5) / 1000 == value)
    return value is None or kind is bool


_quick: _Quick | None = None


def _processors(redactor: Redactor, *, console: bool, colors: bool) -> list[Processor]:
    last: list[Processor] = [_first_things_first, _as_json]
    if console:
        last = [_on_one_line, structlog.dev.ConsoleRenderer(colors=colors)]

    # Comes after exceptions were written out, so that their texts are masked too.
    def mask(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        # Fields that our own code names are masked by name; `event` and `level` are words, not values.
        return {name: _cut(redactor.value(value, name)) for name, value in event.items()}

    return [
        _count_trouble,
        _with_ids,
        structlog.contextvars.merge_contextvars,
        _add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        mask,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *last,
    ]


def _count_trouble(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    name = event.get("event", "")
    if method in _TROUBLE_LEVELS and logger.name and logger.name.startswith("callgate") and str(name).isidentifier():
        TROUBLE["error" if method == "exception" else method, name] += 1
    return event


def _with_ids(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    ids = _ids.get()
    return event if ids is None else {**ids, **event}


def _add_logger_name(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if logger.name:
        event["logger"] = logger.name
    return event


def _cut(value: Any) -> Any:
    """After masking: the first half of a secret would no longer be known for one."""
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return f"{value[:_MAX_TEXT]}… ({len(value) - _MAX_TEXT} more characters)"
    return value


def _first_things_first(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Put time, level and event first: a line is read from its left end."""
    return {name: event[name] for name in ("timestamp", "level", "event", "logger") if name in event} | dict(event)


def _as_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
    try:
        return _encoder.encode(event).decode()
    except UnicodeEncodeError:  # half a surrogate pair: rare, and not worth losing the line for
        return _encoder.encode(_encodable(event)).decode()


_encoder: Final = msgspec.json.Encoder()


def _encodable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_encodable(key): _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_encodable(inner) for inner in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _on_one_line(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escape line breaks and control characters, so that no value can forge a line. Tracebacks keep their lines."""
    for name, value in event.items():
        if isinstance(value, str):
            kept = "\n\t" if name in {"exception", "stack"} else ""
            event[name] = "".join(it if it.isprintable() or it in kept else repr(it)[1:-1] for it in value)
    return event


class _Lines:
    """The logger that structlog hands finished lines to.

    A line that comes alone is written at the end of the event loop's turn. Where they come all the time they are gathered
    for a few milliseconds: a write gives the interpreter lock away, which costs more than making the line.
    """

    _lock: Final = threading.Lock()
    _waiting: Final[dict[TextIO | None, list[str]]] = {}
    _due_on: asyncio.AbstractEventLoop | None = None
    """The loop that will write what waits. Another one cannot rely on it."""
    _due_in = 0
    """The thread of that loop."""
    _written_at = -inf

    def __init__(self, name: str | None, stream: TextIO | None) -> None:
        self.name = name
        self._stream = stream

    def msg(self, line: str) -> None:
        here = threading.get_ident()
        with self._lock:
            self._waiting.setdefault(self._stream, []).append(line)
            # One that runs in this thread is the running one. Asking for that is a system call each time.
            if self._due_on is not None and self._due_in == here and self._due_on.is_running():
                return
            try:
                loop = _Lines._due_on = asyncio.get_running_loop()
                _Lines._due_in = here
            except RuntimeError:  # another thread, or no server
                loop = None
        if loop is None:
            write_all()
            return
        wait = self._written_at + _GATHERED_SECONDS - time.monotonic()
        loop.call_later(wait, write_all) if wait > 0 else loop.call_soon(write_all)

    debug = info = warning = error = critical = fatal = msg

    @classmethod
    def write_all(cls) -> None:
        with cls._lock:
            waiting = list(cls._waiting.items())
            cls._waiting.clear()
            cls._due_on, cls._written_at = None, time.monotonic()
            for each, lines in waiting:
                stream = each or sys.stderr
                stream.write("\n".join(lines) + "\n")
                stream.flush()


def write_all() -> None:
    """Write what has been gathered. At the end of the process it happens by itself, unless it ends without one."""
    _Lines.write_all()


atexit.register(write_all)


# Other people's logs ----------------------------------------------------------------------------


def _bridge(level: int, *, console: bool) -> None:
    for name in _WITH_HANDLERS:
        # Works before the library is imported as well as after.
        logger = logging.getLogger(name)
        logger.__class__ = _NoHandlers
        logger.handlers.clear()
    root = logging.getLogger()
    for handler in [it for it in root.handlers if isinstance(it, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(_Bridge())
    root.setLevel(level)
    logging.captureWarnings(capture=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    # To a person the banner says that it serves, and a line of ours that it ends.
    logging.getLogger("uvicorn.error").setLevel(
        logging.WARNING if console and level > logging.DEBUG else logging.NOTSET
    )
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False


class _Bridge(logging.Handler):
    """Hands records of the standard library's loggers to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            # The standard answer prints the arguments as they are, and they may hold anything.
            log.warning("log_record_malformed", at=f"{record.pathname}:{record.lineno}")
            return
        more: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        log.log(next((known for known in _STANDARD_LEVELS if record.levelno >= known), logging.DEBUG), message, **more)


class _NoHandlers(logging.Logger):
    """A logger whose owner would give it handlers when imported; each line would then be written twice, once unmasked."""

    def addHandler(self, hdlr: logging.Handler) -> None:  # noqa: N802 - the standard library's name
        """Lets it go: lines reach ours through the root."""
