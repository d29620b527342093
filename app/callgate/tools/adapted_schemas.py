"""Caches the encoded schemas of server tools in the dialects of providers."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from callgate.schemas.adapted_model import Translate
from callgate.schemas.dialects import Dialect, portable
from callgate.tools.registry import encoded

REMEMBERED = 4096
OnLoss: TypeAlias = Callable[[str, Dialect, Sequence[str]], None]
"""Called once for each tool and dialect with the parts of its schema that the dialect cannot express."""


class _SchemaFunction(msgspec.Struct):
    name: str
    description: str
    parameters: dict[str, object]


class _Tool(msgspec.Struct):
    function: _SchemaFunction


class AdaptedSchemas:
    """Translates schemas of server tools, for which `is_ours` is true; those of clients are sent unchanged."""

    def __init__(self, is_ours: Callable[[bytes], bool], on_loss: OnLoss) -> None:
        self._is_ours, self._on_loss = is_ours, on_loss
        self._made: OrderedDict[tuple[Dialect, bytes], msgspec.Raw] = OrderedDict()

    def into(self, dialect: Dialect) -> Translate:
        return partial(self._translate, dialect)

    def _translate(self, dialect: Dialect, schema: msgspec.Raw) -> msgspec.Raw:
        text = bytes(schema)
        made = self._made.get((dialect, text))
        if made is not None:
            self._made.move_to_end((dialect, text))
            return made
        if not self._is_ours(text):
            return schema
        tool = msgspec.json.decode(text, type=_Tool).function
        found = portable(tool.parameters, dialect)
        if found.losses:
            self._on_loss(tool.name, dialect, found.losses)
        made = self._made[dialect, text] = encoded(tool.name, tool.description, found.schema)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)
        return made
