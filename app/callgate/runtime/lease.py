"""Counts the requests that use a runtime, and closes it after the last one."""

import asyncio
from types import TracebackType

from callgate.runtime.runtime import Runtime


class OpenRuntime:
    """One runtime, opened and closed inside one task of its own, as tool servers require.

    A request that has entered it uses the runtime to its end, even if another one becomes current meanwhile.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.leases = 0
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._last_left: asyncio.Event | None = None
        """Set by the last request; None until the end is waited for."""
        self._task = asyncio.create_task(self._run(), name="runtime")

    @classmethod
    async def begin(cls, runtime: Runtime) -> "OpenRuntime":
        opened = cls(runtime)
        try:
            await asyncio.shield(opened._opened)
        except asyncio.CancelledError:
            opened._task.cancel()
            await asyncio.wait([opened._task])
            raise
        return opened

    async def end(self) -> None:
        """Close the runtime once the last request has left it."""
        self._ending.set()
        await self._task

    def __enter__(self) -> Runtime:
        self.leases += 1
        return self.runtime

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leases -= 1
        if self._last_left is not None and not self.leases:
            self._last_left.set()

    async def _run(self) -> None:
        try:
            await self.runtime.open()
        except asyncio.CancelledError:
            await self.runtime.close()
            self._opened.cancel()
            raise
        except BaseException as failure:  # noqa: BLE001 - raised by `begin`, whatever it was
            await self.runtime.close()
            self._opened.set_exception(failure)
            return
        self._opened.set_result(None)
        await self._ending.wait()
        if self.leases:
            self._last_left = asyncio.Event()
            await self._last_left.wait()
        await self.runtime.close()
