"""A runtime while it is open, and the requests that lease it."""

import asyncio

from callgate.runtime.runtime import Runtime


class Lease:
    """The use of one runtime while the block lasts, even if another one becomes current meanwhile."""

    __slots__ = ("_opened",)

    def __init__(self, opened: "OpenRuntime") -> None:
        self._opened = opened

    def __enter__(self) -> Runtime:
        return self._opened.acquire()

    def __exit__(self, *_: object) -> None:
        self._opened.release()


class OpenRuntime:
    """One runtime, opened and closed inside one task of its own, because tool servers insist on that."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.leases = 0
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
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
        """Close once the last lease has been given back."""
        self._ending.set()
        await self._task

    def acquire(self) -> Runtime:
        self.leases += 1
        self._empty.clear()
        return self.runtime

    def release(self) -> None:
        self.leases -= 1
        if not self.leases:
            self._empty.set()

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
        await self._empty.wait()
        await self.runtime.close()
