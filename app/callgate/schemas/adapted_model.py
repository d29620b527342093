"""Wraps a model, to offer server-side tools in its provider's dialect of JSON Schema."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from operator import is_not
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.conversation.ports import Model, ModelAnswer, ModelRequest, Passthrough

Translate: TypeAlias = Callable[[msgspec.Raw], msgspec.Raw]
"""Translates a tool's encoded schema; a client's own tools are returned unchanged."""


class AdaptedModel:
    """Wraps a deployment. Passed-through requests have no tools of ours, and are not changed."""

    def __init__(self, inner: Model, translate: Translate) -> None:
        self._inner = inner
        self._translate = translate
        self._last: tuple[Sequence[msgspec.Raw], tuple[msgspec.Raw, ...]] = ((), ())

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
                    self._last = tools, after
            if request.tools:
                request = replace(request, tools=after)
            else:
                request = replace(request, withheld=after)
        return self._inner.send(request)
