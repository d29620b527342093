"""Starts and stops modules of tools: runs their functions marked with `@start` and `@stop`, for a pool of connections and the like.

A module is loaded once in a process, so that it is also started once, however many entries of the config name it and however
often the config is reloaded. It is stopped when the last runtime that has its tools is closed.
"""

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import structlog

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.tools.executor import CallContext, Executor, Tool
from callgate.tools.kinds.python.authoring import Hook, hook_of
from callgate.tools.kinds.python.function import NotATool, raised_at, said
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.source_supervisor import CannotOpen

log = structlog.get_logger("callgate.tools")

HookFunction = Callable[[], Any]


class _InThread(msgspec.Struct):
    """The start of a module in a thread, which goes on when nobody waits for it any more."""

    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    """Held while it is decided whether it begins."""
    has_begun: bool = False
    is_given_up: bool = False
    """It does not begin, if it has not."""
    is_over: bool = False
    error: BaseException | None = None


class _Life(msgspec.Struct):
    """The state of one module in this process."""

    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    """Held while it is being started or stopped."""
    users: int = 0
    is_started: bool = False
    error: str = ""
    """Why it could not be started."""
    abandoned: _InThread | None = None
    """A start that took longer than it may."""


_LIVES: WeakKeyDictionary[ModuleType, _Life] = WeakKeyDictionary()


class ModuleService:
    """A module with hooks, as a source without tools: `open` starts it, `close` stops it."""

    kind = "python"

    def __init__(self, module: ModuleType, hooks: dict[Hook, HookFunction], threads: ThreadPool) -> None:
        self.name = f"module {module.__name__}"
        self._start = hooks.get(Hook.START)
        self._stop = hooks.get(Hook.STOP)
        self._threads = threads
        self._life = _LIVES.setdefault(module, _Life())

    async def open(self) -> None:
        life = self._life
        async with life.lock:
            if not life.is_started:
                await self._begin(life)
                life.is_started = True
                life.error = ""
            life.users += 1

    def tools(self) -> tuple[Tool, ...]:
        return ()

    async def close(self) -> None:
        life = self._life
        life.users -= 1
        async with life.lock:
            if life.users or not life.is_started:
                return  # another runtime has it
            life.is_started = False
            await self._end()

    async def trouble(self) -> str:
        """Return why the tools of the module cannot be called; empty where they can. Waits for a start that is under way."""
        life = self._life
        if not life.is_started:
            async with life.lock:
                if not life.is_started:
                    return life.error or f"{self.name} is not started"
        return ""

    async def _begin(self, life: _Life) -> None:
        if self._start is None:
            return
        try:
            if inspect.iscoroutinefunction(self._start):
                await self._start()
            else:
                await self._begin_in_thread(self._start, life)
        except asyncio.CancelledError:
            life.error = f"{self.name} did not start in time"
            raise
        except CannotOpen as error:
            life.error = str(error)
            raise
        except (Exception, SystemExit) as error:  # a stranger's code: anything may come
            why = f"{self.name} did not start: {said(error)}"
            if why != life.error:  # tried again and again, it fails with a traceback once
                self._log_raised(Hook.START, self._start, error)
            place = f" ({where})" if (where := raised_at(error)) else ""
            life.error = why
            raise CannotOpen(f"`{_name(self._start)}` raised {said(error)}{place}") from error

    async def _begin_in_thread(self, start: HookFunction, life: _Life) -> None:
        """Run the hook in a thread. One that is still running from an earlier attempt is not begun a second time."""
        if life.abandoned is not None:
            earlier = life.abandoned
            if not earlier.is_over:
                raise CannotOpen(f"{self.name} is still starting: `{_name(start)}` has not returned")
            life.abandoned = None
            if earlier.error is None:
                return
        this = _InThread()

        def begin() -> None:
            with this.lock:
                if this.is_given_up:
                    return
                this.has_begun = True
            try:
                start()
            except BaseException as error:
                this.error = error
                raise
            finally:
                this.is_over = True

        try:
            await self._threads.run(begin)
        except asyncio.CancelledError:
            with this.lock:
                this.is_given_up = True
                if this.has_begun:
                    life.abandoned = this
            raise

    async def _end(self) -> None:
        if self._stop is None:
            return
        try:
            if inspect.iscoroutinefunction(self._stop):
                await self._stop()
            else:
                await self._threads.run(self._stop)
        except asyncio.CancelledError:
            log.warning("module_stop_abandoned", module=self.name.removeprefix("module "), function=_name(self._stop))
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above; the server ends all the same
            self._log_raised(Hook.STOP, self._stop, error)

    def _log_raised(self, hook: Hook, function: HookFunction, error: BaseException) -> None:
        log.warning(
            "module_hook_raised",
            module=self.name.removeprefix("module "),
            hook=str(hook),
            function=_name(function),
            where=raised_at(error),
            exc_info=error,
        )


class StartedFirst:
    """Runs the calls of a tool once its modules are started, and refuses them where those cannot be."""

    def __init__(self, executor: Executor, services: Sequence[ModuleService]) -> None:
        self._executor = executor
        self._services = services

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        for service in self._services:
            if trouble := await service.trouble():
                text = f"Not run: {trouble}. Try again later, or go on without this tool."
                return Failed(text, FailureKind.UNAVAILABLE)
        return await self._executor.execute(call, context)


def services_of(module: ModuleType, threads: ThreadPool) -> tuple[ModuleService, ...]:
    """Return the modules that have to be started for the tools of a module: those whose hooks it has or imports."""
    hooks: dict[ModuleType, dict[Hook, HookFunction]] = {}
    for value in dict.fromkeys(value for value in vars(module).values() if inspect.isfunction(value)):
        hook = hook_of(value)
        if hook is None:
            continue
        hooks_of_owner = hooks.setdefault(sys.modules.get(value.__module__, module), {})
        if hook in hooks_of_owner:
            both = f"{_name(hooks_of_owner[hook])} and {_name(value)}"
            raise NotATool(f"{value.__module__} marks both {both} with @{hook}: call one of them from the other")
        hooks_of_owner[hook] = value
    return tuple(ModuleService(owner, hooks_of_owner, threads) for owner, hooks_of_owner in hooks.items())


def _name(function: HookFunction) -> str:
    return getattr(function, "__name__", "")
