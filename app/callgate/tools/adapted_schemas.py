"""Caches the encoded schemas of server tools in the dialects of providers."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, get_args

import msgspec

from callgate.schemas.adapted_model import Translate
from callgate.schemas.dialects import Dialect, portable
from callgate.tools.read_more import read_more_apart_from
from callgate.tools.registry import encoded
from callgate.untrusted.readers import read_shape

DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)
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
        self._is_ours = is_ours
        self._on_loss = on_loss
        read_more = bytes(read_more_apart_from(()).definition)
        self._made = OrderedDict(((dialect, read_more), msgspec.Raw(read_more)) for dialect in DIALECTS)
        """Translated tools, and `read_more`, which is sent as it is in every dialect."""

    def into(self, dialect: Dialect) -> Translate:
        return partial(self._translate, dialect)

    def _translate(self, dialect: Dialect, tool_definition: msgspec.Raw) -> msgspec.Raw:
        text = bytes(tool_definition)
        definition = self._made.get((dialect, text))
        if definition is not None:
            self._made.move_to_end((dialect, text))
            return definition
        if not self._is_ours(text):
            return tool_definition
        tool = read_shape(tool_definition, _Tool).function
        portable_schema = portable(tool.parameters, dialect)
        if portable_schema.losses:
            self._on_loss(tool.name, dialect, portable_schema.losses)
        definition = self._made[dialect, text] = encoded(tool.name, tool.description, portable_schema.schema)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)
        return definition
