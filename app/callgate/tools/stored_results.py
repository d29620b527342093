"""Keeps the rest of results that were too long in the shared store."""

from collections.abc import Sequence

import structlog

from callgate.state.store import KeyValueStore, StoreError

log = structlog.get_logger("callgate.tools")


class StoredResults:
    """Keeps results in the shared store. While that is away, only the process that ran the tool has them."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    async def put(self, id: str, encoded_result: bytes, seconds: float) -> None:
        try:
            await self._store.put(f"rest:{id}", encoded_result, seconds)
        except StoreError as error:
            log.warning("result_not_shared", result=id, error=str(error))

    async def get(self, ids: Sequence[str], seconds: float) -> Sequence[bytes | None]:
        try:
            return await self._store.get_all([f"rest:{id}" for id in ids], renew=seconds)
        except StoreError as error:
            log.warning("result_not_found", results=list(ids), error=str(error))
            return [None] * len(ids)
