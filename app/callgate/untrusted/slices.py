"""Opens foreign bytes on the event loop, and hands it back between two slices."""

import asyncio
from typing import overload

from callgate.untrusted.doors import Opened, Untrusted
from callgate.untrusted.messagepack import OpenedPack, UntrustedPack
from callgate.untrusted.work import WORK


@overload
async def open_in_slices(untrusted: Untrusted) -> Opened: ...
@overload
async def open_in_slices(untrusted: UntrustedPack) -> OpenedPack: ...
async def open_in_slices(untrusted: Untrusted | UntrustedPack) -> Opened | OpenedPack:
    """The same as `Untrusted.open`, but let the event loop go on after each slice of a large text."""
    for _ in untrusted.slices():
        await asyncio.sleep(0)
    WORK.texts += 1
    WORK.bytes += len(untrusted.data)
    if isinstance(untrusted, UntrustedPack):
        return OpenedPack(untrusted.data)
    return Opened(untrusted.data)
