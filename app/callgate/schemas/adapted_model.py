"""A model whose provider is picky about schemas: server-side tools are offered in its provider's dialect."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from operator import is_not
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from callgate.conversation.ports import Model, ModelAnswer, ModelRequest, Passthrough

Translate: TypeAlias = Callable[[msgspec.Raw], msgspec.Raw]
"""From a tool's encoded schema to the one to send; a client's own tools come back as they are."""


class AdaptedModel:
    """Around a deployment. What is passed straight through has no tool of ours in it, and stays untouched."""

    def __init__(self, inner: Model, translate: Translate) -> None:
        self._inner, self._translate = inner, translate
        self._last: tuple[Sequence[msgspec.Raw], tuple[msgspec.Raw, ...]] = ((), ())

    @property
    def name(self) -> str:
        return self._inner.name

    def ask(self, ask: ModelRequest | Passthrough) -> AbstractAsyncContextManager[ModelAnswer]:
        if isinstance(ask, ModelRequest) and ask.tools:
            # Requests of one kind offer the very same server-side tools, which are translated once.
            before, after = self._last
            if ask.tools is not before:
                after = tuple(map(self._translate, ask.tools))
                # A client's own would keep the whole body alive that they came in.
                if all(map(is_not, ask.tools, after)):
                    self._last = ask.tools, after
            ask = replace(ask, tools=after)
        return self._inner.ask(ask)
