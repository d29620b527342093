"""A model whose provider is picky about schemas: the house's tools are shown to it in its provider's dialect."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from app.chat.ports import Answer, Ask, Model, Passage, PassOn, relay_in

Translate: TypeAlias = Callable[[msgspec.Raw], msgspec.Raw]
"""From a tool's encoded schema to the one to send; a client's own tools come back as they are."""


class PortableTools:
    """Around a deployment. What is passed straight through has no tool of ours in it, and stays untouched."""

    def __init__(self, inner: Model, translate: Translate) -> None:
        self._inner, self._translate = inner, translate
        self._relay = relay_in(inner)

    @property
    def name(self) -> str:
        return self._inner.name

    def ask(self, ask: Ask) -> AbstractAsyncContextManager[Answer]:
        if ask.tools:
            ask = replace(ask, tools=tuple(map(self._translate, ask.tools)))
        return self._inner.ask(ask)

    def can_pass_on(self, *, with_tools: bool) -> bool:
        return self._relay is not None and self._relay.can_pass_on(with_tools=with_tools)

    def pass_on(self, asked: PassOn) -> AbstractAsyncContextManager[Passage]:
        assert self._relay is not None, "it was not asked whether it can"
        return self._relay.pass_on(asked)
