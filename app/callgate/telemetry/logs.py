"""Logging: one format for our lines and those of libraries, to standard error with secrets masked.

Lines are JSON, or coloured text on a terminal. All lines of a request have its id and its run's. uvicorn's access log is off,
because the middleware writes one line for each request.
"""

import atexit
import logging
import sys
import threading
from asyncio import AbstractEventLoop, get_running_loop
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from math import inf
from threading import get_ident
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from callgate.config import redaction
from callgate.config.redaction import MIN_SECRET_LENGTH, Redactor
from callgate.config.secret_names import means_secret
from callgate.telemetry.console_lines import ConsoleLines

_MAX_TEXT: Final = 16_384
"""Characters after which a value is cut."""

_QUIET: Final = (
    "LiteLLM", "LiteLLM Proxy", "LiteLLM Router", "aiohttp", "httpcore", "httpcore2", "httpx", "httpx2", "openai",
    "watchfiles",
)  # fmt: skip
"""Libraries of which only warnings are logged, because their `debug` lines have whole conversations."""

_SILENT: Final = ("client", "mcp")
"""The MCP SDK logs a traceback with received data for every lost connection, which we log ourselves."""

_WITH_HANDLERS: Final = ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router")

_GATHERED_SECONDS: Final = 0.005
"""How long lines are gathered under load."""

_STANDARD_LEVELS: Final = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


def configure(redactor: Redactor, *, level: str = "info", format: str = "auto", stream: TextIO | None = None) -> None:
    """Set up logging for the whole process. May be called again on a reload.

    `format`: `json`, `console`, or `auto`, which is `console` on a terminal. Without a `stream` lines go to the current
    `sys.stderr`.
    """
    global _fast  # noqa: PLW0603 - like structlog's own, this configuration is one for the process
    redaction.use(redactor)
    console = format == "console" or (format == "auto" and (stream or sys.stderr).isatty())
    processors = _processors(redactor, console=console, colors=(stream or sys.stderr).isatty())
    if console:
        _fast = None
    else:
        _fast = _FastLines(redactor, logging.getLevelNamesMapping()[level.upper()], processors, stream)

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

set_log_ids: Final[Callable[[dict[str, str]], object]] = _ids.set
"""Sets the ids that are on every line in this context; our own, or masked. The caller may add ids to the dict later. One context
variable for all of them, because each costs something in every request."""


def masked(text: str) -> str:
    """Mask the secrets in a text."""
    return str(redaction.current.value(text))


def mask_of_now() -> Callable[[str], str]:
    """Return what masks the secrets in a text, and later still those of the requests that run now."""
    lent = redaction.current.lent
    if lent is None:
        return masked

    def masked_later(text: str) -> str:
        return masked(lent.registered(text))

    return masked_later


def masked_value(value: Any) -> Any:
    """Convert a value to plain data with its secrets masked."""
    return redaction.current.value(value)


TROUBLE: Final[Counter[tuple[str, str]]] = Counter()
"""How often each of our events was logged as a warning or an error, for metrics."""
_TROUBLE_LEVELS: Final = frozenset({"warning", "error", "exception", "critical"})


class Log:
    """A logger for lines that every request writes, with the output of structlog at a fifth of the cost. If structlog is
    configured in another way than by `configure` (a console, a test), it uses structlog.
    """

    __slots__ = ("_bound", "_name")

    def __init__(self, name: str, **bound: Any) -> None:
        self._name = name
        self._bound = bound

    def bind(self, **fields: Any) -> "Log":
        return Log(self._name, **self._bound, **fields)

    @staticmethod
    def enabled_for(number: int) -> bool:
        """True if lines of this level are written, for callers whose fields are costly."""
        return _fast is None or number >= _fast.threshold or _fast.processors[-1] is not _as_json

    def debug(self, event: str, **fields: Any) -> None:
        self.write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self.write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self.write("warning", event, fields)

    def write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """Write a line whose fields are in a dict already. A fifth of a line's cost is to hand them over by name."""
        fast = _fast
        if self._bound:
            fields = {**self._bound, **fields}
        if fast is not None and fast.processors[-1] is _as_json:
            if level not in fast.levels:
                return
            line = fast.line_fast(self._name, level, event, fields)
            if line is not None:
                if level == "warning":
                    TROUBLE[level, event] += 1
                fast.lines.msg(line)
                return
        getattr(structlog.get_logger(self._name), level)(event, **fields)

    def write_usual(self, level: str, event: str, fields: dict[str, Any], ms: float, notes: dict[str, Any]) -> None:
        """Write a line of which all but ids and duration mostly stands on earlier ones too, as `write` does with `fields`, `ms` and `notes`
        in this order."""
        fast = _fast
        if fast is not None and fast.processors[-1] is _as_json and level in fast.levels and not self._bound:
            line = fast.usual_line_fast(self._name, level, event, fields, ms, notes)
            if line is not None:
                if level == "warning":
                    TROUBLE[level, event] += 1
                fast.lines.msg(line)
                return
        self.write(level, event, {**fields, "ms": ms, **notes})


class _UsualLine(NamedTuple):
    """What a line shares with others, encoded: the parts around its time, its ids and its duration."""

    before_ids: bytes
    before_ms: bytes
    after_ms: bytes

    @staticmethod
    def of(name: str, level: str, event: str, fields: dict[str, Any], notes: dict[str, Any]) -> "_UsualLine":
        shared = _encode({"level": level, "event": event, "logger": name})
        # A name in front of each gives it the comma that it has in the line.
        before = _encode({"": None, **fields}).removeprefix(_NOTHING)
        after = _encode({"": None, **notes}).removeprefix(_NOTHING)
        return _UsualLine(b"," + shared[1:-1] + b",", before[:-1] + b',"ms":', after)


class _FastLines:
    """Makes lines for `Log`."""

    def __init__(self, redactor: Redactor, threshold: int, processors: list[Processor], stream: TextIO | None) -> None:
        self.threshold = threshold
        self.levels = frozenset(level for level, number in _LEVELS.items() if number >= threshold)
        """The levels that are written."""
        self._redactor = redactor
        self._open_names: set[str] = set()
        """Names of fields that do not mean secrets; there are few, all of our own code."""
        self.processors = processors
        """The list that structlog uses; `capture_logs` replaces its content, so that it does not end with `_as_json` then."""
        self.lines = _Lines(None, stream)
        """Takes the lines that were made here."""
        self._usual: dict[tuple[Any, ...], _UsualLine] = {}
        self._harmless = redactor.harmless
        """The set of harmless values of `_usual`. The redactor makes a new one when it has to mask more."""

    def usual_line_fast(
        self, name: str, level: str, event: str, fields: dict[str, Any], ms: float, notes: dict[str, Any]
    ) -> str | None:
        """Equals `line_fast` for `fields`, `ms` and `notes`, or returns None. Only for lines of which nothing has to be masked; the first
        of its kind is made by `line_fast`."""
        ids = _ids.get() or _NO_IDS
        duration = _encode(ms)
        if type(ms) is not float or len(duration) > _SHORT_DURATION or not ids:
            return None
        if self._harmless is not self._redactor.harmless:
            self._usual = {}
            self._harmless = self._redactor.harmless
        values = (*fields.values(), *notes.values())
        kind = (name, level, event, *ids, *fields, *notes, values, *map(type, values))
        try:
            usual = self._usual.get(kind)
        except TypeError:  # an unhashable list or mapping
            return None
        if usual is None:
            if self._is_usual(event, values, (*ids, *fields, "ms", *notes)):
                if len(self._usual) >= _MOST_USUAL:
                    self._usual.clear()
                self._usual[kind] = _UsualLine.of(name, level, event, fields, notes)
            return None
        ours = _encode(ids)[1:-1]
        return b"".join(
            (_TIME, _encode(_now(UTC)), usual.before_ids, ours, usual.before_ms, duration, usual.after_ms)
        ).decode()

    def _is_usual(self, event: str, values: Sequence[Any], names: Sequence[str]) -> bool:
        """True if a line like this may be made of parts: it is like one that was written, and nothing of it was masked."""
        if len({*names}) < len(names) or not _PROCESSED.isdisjoint(names):
            return False
        if event not in self._harmless or not self._open_names.issuperset(names[-len(values) - 1 :]):
            return False
        for value in values:
            if type(value) is float or not (value in self._harmless or _is_short(value)):
                return False
            if type(value) is str and (len(value) > _MOST_CHARACTERS or not value.isascii()):
                return False
        return True

    def line_fast(self, name: str, level: str, event: str, fields: dict[str, Any]) -> str | None:
        """Equals the line that `_processors` make for every input, or returns None. It takes a fifth of the time."""
        harmless = self._redactor.harmless
        if event not in harmless:
            event = _cut(self._redactor.value(event))
        ids = _ids.get() or _NO_IDS
        # The encoder writes the time as structlog's stamper does.
        line = {"timestamp": _now(UTC), "level": level, "event": event, "logger": name, **ids, **fields}
        if not (fields.keys() <= self._open_names and self._are_harmless(fields.values(), ids.values())):
            if not fields.keys().isdisjoint(_PROCESSED):
                return None
            self._mask(fields, line, ids.values())
        try:
            return _encode(line).decode()
        except UnicodeEncodeError:
            return _as_json(None, level, line)

    def _are_harmless(self, values: Collection[Any], ours: Collection[str]) -> bool:
        """True if no value has to be searched for secrets: `ours` are ids, which are not masked again. Checked for all values at
        once, which is much cheaper; what is left are durations and new values."""
        try:
            unknown = {*values}.difference(self._redactor.harmless, ours)
        except TypeError:  # an unhashable list or mapping
            return False
        for value in unknown:
            if not _is_short(value):
                return False
            if type(value) is not float:  # durations hardly come again
                self._redactor.remember(value)
        return True

    def _mask(self, fields: dict[str, Any], line: dict[str, Any], ours: Collection[str]) -> None:
        """Mask the secrets in a line. Harmless values are cached."""
        harmless = self._redactor.harmless
        for key, value in fields.items():
            if key not in self._open_names:
                if means_secret(key):
                    line[key] = _cut(self._redactor.value(value, key))
                    continue
                self._open_names.add(key)
            if type(value) is str:
                if value not in harmless and value not in ours:
                    line[key] = _cut(self._redactor.value(value, key))
            elif not _is_short(value):
                line[key] = _cut(self._redactor.value(value, key))


def _is_short(value: Any) -> bool:
    """True for values of fewer characters than a secret has: durations, small numbers, booleans."""
    kind = type(value)
    if kind is float or kind is int:
        return len(repr(value)) < MIN_SECRET_LENGTH
    return value is None or kind is bool


_fast: _FastLines | None = None
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
_NO_IDS: Final[dict[str, str]] = {}
_now: Final = datetime.now
_TIME: Final = b'{"timestamp":'
_NOTHING: Final = b'{"":null'
_SHORT_DURATION: Final = MIN_SECRET_LENGTH - 3
"""The length of a number that Python may write with two more characters, and that is still shorter than a secret."""
_MOST_CHARACTERS: Final = 200
"""The longest value of a line that is kept."""
_MOST_USUAL: Final = 256
"""Kinds of lines of which the shared parts are kept; many times what one config has."""
_PROCESSED: Final = frozenset({"timestamp", "level", "event", "logger", "exc_info", "stack_info", "exception", "stack"})
"""The fields that structlog's processors read or write."""


def _processors(redactor: Redactor, *, console: bool, colors: bool) -> list[Processor]:
    last: list[Processor] = [_first_things_first, _as_json]
    if console:
        last = [_on_one_line, ConsoleLines(colors=colors)]

    # After exceptions were formatted, so that their texts are masked too.
    def mask(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        # Fields are masked by name too; `event` and `level` are no values.
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
        level = method
        if method == "exception":
            level = "error"
        TROUBLE[level, name] += 1
    return event


def _with_ids(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    ids = _ids.get()
    if ids is None:
        return event
    return {**ids, **event}


def _add_logger_name(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if logger.name:
        event["logger"] = logger.name
    return event


def _cut(value: Any) -> Any:
    """Cut a long value, after masking, because half a secret would not be recognized."""
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return f"{value[:_MAX_TEXT]}… ({len(value) - _MAX_TEXT} more characters)"
    return value


def _first_things_first(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Put time, level and event first."""
    return {name: event[name] for name in ("timestamp", "level", "event", "logger") if name in event} | dict(event)


def _as_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
    try:
        return _encoder.encode(event).decode()
    except UnicodeEncodeError:  # a lone surrogate
        return _encoder.encode(_encodable(event)).decode()


_encoder: Final = msgspec.json.Encoder()
_encode: Final = _encoder.encode


def _encodable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_encodable(key): _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_encodable(inner) for inner in value]
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return value


def _on_one_line(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escape line breaks and control characters, so that no value can forge a line. Tracebacks are kept."""
    for name, value in event.items():
        if isinstance(value, str):
            allowed = ""
            if name in {"exception", "stack"}:
                allowed = "\n\t"
            event[name] = "".join(_escaped(character, allowed) for character in value)
    return event


def _escaped(character: str, allowed: str) -> str:
    if character.isprintable() or character in allowed:
        return character
    return repr(character)[1:-1]


class _Lines:
    """The logger that writes structlog's finished lines.

    A single line is written at the end of the event loop's iteration. Under load lines are gathered for a few milliseconds,
    because each write releases the interpreter lock, which costs more than making the line.
    """

    _lock: Final = threading.Lock()
    _waiting: ClassVar[deque[tuple[TextIO | None, str]]] = deque()
    _due_on: AbstractEventLoop | None = None
    """The event loop that will write the gathered lines."""
    _due_in = 0
    """The thread of that event loop."""
    _written_at = -inf
    lost = 0
    """Lines that their stream did not take, since the start."""
    _told = 0
    """How many of them lines have told of."""

    def __init__(self, name: str | None, stream: TextIO | None) -> None:
        self.name = name
        self._stream = stream

    def msg(self, line: str) -> None:
        self._waiting.append((self._stream, line))
        # Without the lock, because who writes takes this mark away before the lines. Compared by thread, because
        # `get_running_loop` makes a system call.
        due_on = self._due_on
        if due_on is None or self._due_in != get_ident() or not due_on.is_running():
            self._write_soon()

    def _write_soon(self) -> None:
        try:
            loop = get_running_loop()
        except RuntimeError:  # another thread, or no event loop
            write_all()
            return
        with self._lock:
            _Lines._due_on = loop
            _Lines._due_in = get_ident()
        wait = self._written_at + _GATHERED_SECONDS - monotonic()
        if wait > 0:
            loop.call_later(wait, write_all)
        else:
            loop.call_soon(write_all)

    debug = info = warning = error = critical = fatal = msg

    @classmethod
    def write_all(cls) -> None:
        """Write the gathered lines. Called at exit, except when the process is ended by `os._exit`.

        A stream that fails loses its lines, and nobody who logs gets its error: that error would be logged in its turn, for ever.
        """
        with cls._lock:
            cls._due_on = None
            cls._written_at = monotonic()
            waiting: dict[TextIO | None, list[str]] = {}
            while cls._waiting:
                chosen_stream, line = cls._waiting.popleft()
                waiting.setdefault(chosen_stream, []).append(line)
            is_written = True
            for chosen_stream, lines in waiting.items():
                stream = chosen_stream or sys.stderr
                lines.append("")
                try:
                    stream.write("\n".join(lines))
                    stream.flush()
                except (OSError, ValueError):  # nobody reads it any more, its disk is full, or it is closed
                    is_written = False
                    cls.lost += len(lines) - 1
            if cls.lost == cls._told or not waiting or not is_written:
                return
            count = cls.lost - cls._told
            cls._told = cls.lost
        log = structlog.get_logger("callgate.logs")
        log.error("log_lines_lost", count=count)


write_all: Final[Callable[[], None]] = _Lines.write_all


def lost_lines() -> int:
    """How many lines could not be written since the start."""
    return _Lines.lost


atexit.register(write_all)


# Logs of libraries ------------------------------------------------------------------------------


def _bridge(level: int, *, console: bool) -> None:
    for name in _WITH_HANDLERS:
        # Also if the library is imported later.
        logger = logging.getLogger(name)
        logger.__class__ = _NoHandlers
        logger.handlers.clear()
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Bridge)]:
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
    # On a terminal the banner and a line of ours replace these.
    logging.getLogger("uvicorn.error").setLevel(
        logging.WARNING if console and level > logging.DEBUG else logging.NOTSET
    )
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False


class _Bridge(logging.Handler):
    """Passes records of the standard library's loggers to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            # The standard error handling would print the arguments unmasked.
            log.warning("log_record_malformed", at=f"{record.pathname}:{record.lineno}")
            return
        fields: dict[str, Any] = {}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        # A name for the line; what more a library has to say would be a name of many lines.
        # Masked before it is cut, because a secret may have a line end in it.
        message, _, more = masked(message).strip("\n").partition("\n")
        if more:
            fields["text"] = more
        level = next((level for level in _STANDARD_LEVELS if record.levelno >= level), logging.DEBUG)
        log.log(level, message, **fields)


class _NoHandlers(logging.Logger):
    """A logger that ignores handlers, which its library adds at import, and which would write each line again, unmasked."""

    def addHandler(self, hdlr: logging.Handler) -> None:  # noqa: N802 - the standard library's name
        """Ignore a handler; records reach ours through the root logger."""
