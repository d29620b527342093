"""Stand-ins for modules that a library imports and that are seldom used, so that importing the library does not load them.

A module that is imported `without` others gets stand-ins for their names: something may be compared with one, annotated with it, and
what is called or looked up is the real one, which is then imported. Whoever imports the modules afterwards has the real ones.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def without(*modules: str) -> Iterator[None]:
    """Give what is imported meanwhile stand-ins for modules; those that are loaded stay as they are."""
    stand_ins = {name: _StandInModule(name) for name in modules if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


class _StandInModule(ModuleType):
    """Has a stand-in by every name that is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stand_in = _StandIn(name, (), {"__module__": self.__name__})
        setattr(self, name, stand_in)
        return stand_in


class _StandIn(type):
    """Stands for a class or a function, until it is compared with, called, or validated by."""

    def real(cls) -> Any:
        return getattr(importlib.import_module(cls.__module__), cls.__name__)

    def __instancecheck__(cls, instance: object) -> bool:
        # Whoever has made an instance has imported its class.
        return cls.__module__ in sys.modules and isinstance(instance, cls.real())

    def __subclasscheck__(cls, subclass: type) -> bool:
        return cls.__module__ in sys.modules and issubclass(subclass, cls.real())

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return cls.real()(*args, **options)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # pydantic looks for what a model has, and asks the method below
            raise AttributeError(name)
        return getattr(cls.real(), name)

    def __get_pydantic_core_schema__(cls, _: Any, handler: Any) -> Any:
        return handler.generate_schema(cls.real())
