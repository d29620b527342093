"""A command line as a tool: an argv with placeholders, run without a shell.

The model's arguments fill the placeholders. They cannot add an argument, and unless that is allowed they cannot begin one
with a dash, which would be an option.
"""

import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from callgate.calls.outcome import Failed, FailureKind, Image, Outcome, Returned
from callgate.calls.states import ReadyCall
from callgate.http.trace_context import trace_headers
from callgate.parsers.landlock import landlock_abi
from callgate.tools.executor import CallContext
from callgate.tools.kinds.command.process import (
    Closed,
    Command,
    CommandProcesses,
    CommandResult,
    EndReason,
    LauncherDied,
    NotStarted,
    Paths,
    ProcessLimits,
    TooLong,
    has_pid_namespaces,
)
from callgate.tools.parameters import named_in, unknown_place
from callgate.tools.results import decoded, described

JSON = "json"
"""The value of `stdin` for all arguments as one JSON object."""
MAX_ARGUMENT = 131_071
"""Bytes of one argument, Linux's limit without the terminating zero."""
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EXCERPT_CHARS = 2_000
"""Characters of a failed command's output that are shown."""

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class BadCommand(ValueError):
    """Raised for an invalid command in the config. For the operator."""


class _BadArgument(ValueError):
    """Raised for an argument that cannot fill its placeholder. For the model."""


class CommandLine:
    """Runs a call as one command.

    `argv` has strings, and lists of strings that are left out together when one of their arguments is missing. `stdin` is
    `json`, or a text with placeholders. Every parameter must have a placeholder. Where the system has PID namespaces each
    command runs in one, unless `pid_namespace` is off.
    """

    def __init__(
        self,
        processes: CommandProcesses,
        *,
        argv: Sequence[str | Sequence[str]],
        parameters: Mapping[str, Any],
        cwd: str,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        allow_options: bool = False,
        ok_codes: Sequence[int] = (0,),
        limits: ProcessLimits | None = None,
        paths: Paths | None = None,
        pid_namespace: bool = True,
    ) -> None:
        self._processes = processes
        self._argv = [(part,) if isinstance(part, str) else tuple(part) for part in argv]
        self._stdin = stdin
        # Of our environment only PATH and the time zone, because the rest may hold secrets.
        environment = {"PATH": os.environ.get("PATH") or USUAL_PATH, "LANG": "C.UTF-8"}
        if "TZ" in os.environ:
            environment["TZ"] = os.environ["TZ"]
        self._env = {**environment, **(env or {})}
        self._allow_options = allow_options
        self._ok_codes = frozenset(ok_codes)
        self._limits = limits or ProcessLimits()
        self._paths = paths
        self._cwd = cwd
        _check(self._argv, stdin, parameters)
        if not os.path.isdir(cwd):  # noqa: PTH112 - a text all along
            raise BadCommand(f"the folder {cwd} is not there")
        self._program = _program(self._argv[0][0], self._env["PATH"], cwd)
        if paths is not None and not landlock_abi():
            raise BadCommand("`paths` needs Landlock, and this system has none: the command would not be held to them")
        if paths is not None:
            _check_paths(paths)
        self._own_pids = pid_namespace and has_pid_namespaces()

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        try:
            command = self._command(call.arguments)
        except _BadArgument as error:
            return Failed(f"Not run: {error}", FailureKind.NOT_RUN)
        try:
            result = await self._processes.run(command, context.max_bytes)
        except Closed:
            return Failed("The tool is being shut down.", FailureKind.UNAVAILABLE)
        except TooLong as error:
            return Failed(f"Not run: {error}", FailureKind.NOT_RUN)
        except NotStarted as error:
            return Failed(f"The command could not be started ({error}).", FailureKind.UNAVAILABLE)
        except LauncherDied as error:
            return Failed(f"The command broke off: {error}. Whether it took effect is not known.", FailureKind.UNKNOWN)
        match result.why:
            case EndReason.GIVEN_UP:
                return Failed("The tool is being shut down.", FailureKind.UNAVAILABLE)
            case EndReason.PROCESSES:
                return Failed(f"Stopped: it started more than {self._limits.processes} processes.")
            case EndReason.STDERR:
                return Failed(_with_excerpt("Stopped: it wrote errors without end", result))
            case EndReason.STDOUT:
                return _read(result)
            case EndReason.ITSELF if result.code in self._ok_codes:
                return _read(result)
            case EndReason.ITSELF:
                return Failed(_with_excerpt(self._how(result), result))

    def _command(self, arguments: Mapping[str, Any]) -> Command:
        env = self._env
        if headers := trace_headers():
            env = {**{name.upper(): value for name, value in headers.items()}, **env}
        groups = (
            group
            for group in self._argv
            if all(arguments.get(name) is not None for part in group for name in _PLACE.findall(part))
        )
        return Command(
            program=self._program,
            argv=tuple(self._element(part, arguments) for group in groups for part in group),
            cwd=self._cwd,
            env=env,
            stdin=self._filled_stdin(arguments),
            limits=self._limits,
            paths=self._paths,
            own_pids=self._own_pids,
        )

    def _element(self, template: str, arguments: Mapping[str, Any]) -> str:
        filled = _PLACE.sub(lambda match: _argument(match.group(1), arguments[match.group(1)]), template)
        begins_with = _PLACE.match(template)
        if begins_with and filled.startswith("-") and not self._allow_options:
            raise _BadArgument(f"`{begins_with.group(1)}` may not begin with a dash: it would be taken for an option")
        if len(filled.encode()) > MAX_ARGUMENT:
            raise _BadArgument(f"an argument is longer than {MAX_ARGUMENT} bytes")
        return filled

    def _filled_stdin(self, arguments: Mapping[str, Any]) -> bytes:
        if self._stdin is None:
            return b""
        if self._stdin == JSON:
            try:
                return msgspec.json.encode(arguments)
            except UnicodeEncodeError as error:
                raise _BadArgument(f"the arguments cannot be written as JSON ({error})") from error
        values = {name: arguments.get(name) for name in _PLACE.findall(self._stdin)}
        return _PLACE.sub(lambda match: _text(match.group(1), values[match.group(1)]), self._stdin).encode()

    def _how(self, result: CommandResult) -> str:
        match result.signal:
            case None:
                return f"It failed with exit code {result.code}"
            case signal.SIGXCPU:
                return f"Stopped: it used more than {self._limits.cpu_seconds} s of processor time"
            case signal.SIGXFSZ:
                return f"Stopped: it wrote a file of more than {self._limits.file_bytes} bytes"
            case number:
                try:
                    signal_name = signal.Signals(number).name
                except ValueError:
                    signal_name = f"signal {number}"
                return f"It was ended by {signal_name}"


def _check(argv: Sequence[Sequence[str]], stdin: str | None, parameters: Mapping[str, Any]) -> None:
    """Raise unless every placeholder has a parameter, and every parameter a placeholder."""
    if not argv or not argv[0] or not argv[0][0]:
        raise BadCommand("`argv` names no program")
    if _PLACE.search(argv[0][0]):
        raise BadCommand("a model may not choose the program; `{…}` belongs behind it")
    if any("\0" in part for group in argv for part in group):
        raise BadCommand("an argument may not contain the character NUL")
    names = named_in(parameters)
    placed = {name for group in argv for part in group for name in _PLACE.findall(part)}
    placed.update(_PLACE.findall(stdin or ""))
    if wrong := unknown_place(placed, names):
        raise BadCommand(wrong)
    for name in sorted(names - placed):
        if stdin != JSON:
            raise BadCommand(f"`{name}` of `parameters` has no place: neither `argv` nor `stdin` says where it goes")


def _check_paths(paths: Paths) -> None:
    """Raise for a path over a symbolic link, or inside a folder that the command may write, where it could create one."""
    for path in (*paths.read, *paths.write):
        real = os.path.realpath(path)
        if real != os.path.normpath(path):
            raise BadCommand(f"`paths`: {path} leads over a link; write {real}, if that is meant")
        for folder in paths.write:
            if path != folder and os.path.normpath(path).startswith(os.path.join(os.path.normpath(folder), "")):  # noqa: PTH118 - texts all along
                raise BadCommand(f"`paths`: {path} is inside {folder}, which the command may write, and so may replace")


def _program(name: str, path: str, cwd: str) -> str:
    """Return the path of the program. Looked up at the start, so that a missing one is found early."""
    if "/" in name:
        name = os.path.join(cwd, name)  # noqa: PTH118 - stays as it is written, links and all
    program = shutil.which(name, path=path)
    if program is None:
        raise BadCommand(f"the program {name} is not there, or cannot be run")
    return os.path.abspath(program)  # noqa: PTH100 - the same


def _argument(name: str, value: Any) -> str:
    text = _text(name, value)
    if "\0" in text:
        raise _BadArgument(f"`{name}` contains the character NUL, which no program can be given")
    return text


def _text(name: str, value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            if value:
                return "true"
            return "false"
        case str():
            text = value
        case int() | float():
            text = str(value)
        case _:
            raise _BadArgument(f"`{name}` must be a single value, because it is part of a command line")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _BadArgument(f"`{name}` is not valid text") from None
    return text


def _read(result: CommandResult) -> Returned:
    """Return standard output, or standard error if a successful command has written only that."""
    data = result.stdout or result.stderr
    size = len(data) + result.missing
    for magic, mime_type in _MAGIC:
        if data.startswith(magic):
            if result.missing:
                return Returned(described(mime_type, size, "too large"), cut_bytes=result.missing)
            return Returned("", images=(Image(data, mime_type),))
    text = _as_text(data)
    if text is None:
        return Returned(described("application/octet-stream", size))
    return Returned(text, cut_bytes=result.missing)


def _as_text(data: bytes) -> str | None:
    """Decode output as text if most of it is valid; a few bytes may be in another encoding."""
    text = decoded(data, None)
    if text is not None or b"\0" in data:
        return text
    mended = data.decode("utf-8", "replace")
    if mended.count("\ufffd") * 10 <= len(mended):
        return mended
    return None


def _with_excerpt(how: str, result: CommandResult) -> str:
    text = (_as_text(_whole(result.stderr)) or _as_text(_whole(result.stdout[-EXCERPT_CHARS:])) or "").strip()
    if text:
        return f"{how}: {text[-EXCERPT_CHARS:]}"
    return f"{how}."


def _whole(tail: bytes) -> bytes:
    """Remove the rest of a character whose beginning was cut off."""
    return tail.lstrip(bytes(range(0x80, 0xC0)))
