"""What FastAPI finds out of a handler, remembered by the handler's code: the tests make thousands of applications, each of which
has the same handlers as new functions, and half the time of making one went to reading their signatures."""

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import fastapi.dependencies.models
import fastapi.dependencies.utils
import fastapi.routing
import starlette.routing

READ = ("get_typed_signature", "get_typed_return_annotation", "_is_gen_callable", "_is_async_gen_callable")
MODULES = (fastapi.dependencies.models, fastapi.dependencies.utils, fastapi.routing)


def read_once() -> None:
    """Have each of these functions look at a handler's code once, and at each path once."""
    for name in READ:
        for module in MODULES:
            if name in vars(module):
                setattr(module, name, _by_code(getattr(module, name)))
    compile_path = functools.cache(starlette.routing.compile_path)
    for module in (starlette.routing, fastapi.routing):
        setattr(module, "compile_path", compile_path)  # noqa: B010 - mypy knows it as a function


def _by_code(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of functions that differ in nothing but what they close over, what is read of one holds for the next."""
    known: dict[CodeType, Any] = {}

    @functools.wraps(read)
    def remembered(call: Any) -> Any:
        if type(call) is not FunctionType or call.__defaults__ or call.__kwdefaults__ or call.__dict__:
            return read(call)
        code = call.__code__
        if code not in known:
            known[code] = read(call)
        return known[code]

    return remembered
