"""Wraps a model, to offer server-side tools in its provider's dialect of JSON Schema."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from operator import is_not
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.conversation.ports import DeferredTools, Model, ModelAnswer, ModelRequest, Passthrough

Translate: TypeAlias = Callable[[msgspec.Raw], msgspec.Raw]
"""Translates a tool's encoded schema; a client's own tools are returned unchanged."""


class AdaptedModel:
    """Wraps a deployment. Passed-through requests have no tools of ours, and are not changed."""

    def __init__(self, inner: Model, translate: Translate) -> None:
        self._inner = inner
        self._translate = translate
        self._deferred: tuple[DeferredTools, DeferredTools] | None = None
        self._last: tuple[Sequence[msgspec.Raw], Sequence[msgspec.Raw]] = ((), ())

    @property
    def name(self) -> str:
        return self._inner.name

    def send(self, request: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        if isinstance(request, ModelRequest) and (tools := request.tools or request.withheld):
            # Requests of one route have the same server-side tools, which are translated once.
            before, after = self._last
            if tools is not before:
                after = tuple(map(self._translate, tools))
                # Not cached with a client's own tools, which would keep the whole request body alive.
                if all(map(is_not, tools, after)):
                    if after == tuple(tools):
                        after = tools  # so that requests are sent on as they are
                    self._last = tools, after
            if after is tools:
                pass
            elif request.tools:
                request = replace(request, tools=after)
            else:
                request = replace(request, withheld=after)
            if (deferred := request.deferred) is not None:
                request = replace(request, deferred=self._adapted(deferred))
        return self._inner.send(request)

    def _adapted(self, deferred: DeferredTools) -> DeferredTools:
        """Return the tools that are searched for, translated once for all requests of a route."""
        if self._deferred is None or self._deferred[0] is not deferred:
            translated = replace(deferred, definitions=tuple(map(self._translate, deferred.definitions)))
            self._deferred = deferred, translated
        return self._deferred[1]
