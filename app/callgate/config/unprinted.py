"""Structs with secrets, which are not shown where one is printed."""

from typing import Any, ClassVar

import msgspec


class Unprinted(msgspec.Struct, frozen=True):
    """A struct of which some fields are left out where it is printed."""

    unprinted: ClassVar[frozenset[str]]
    """The names of those fields."""

    def __repr__(self) -> str:
        values: dict[str, Any] = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in self.unprinted
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"
