"""The decoders of pydantic, behind the door like the others. Apart from them, because it takes long to import."""

from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, TypeAdapter

from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import Text

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def read_partly(text: Opened) -> Any:
    """Decode the beginning of a JSON text as far as it goes. Raises `ValueError`."""
    return pydantic_core.from_json(text, allow_partial="trailing-strings")


def read_as(adapter: TypeAdapter[T], text: Text) -> T:
    """Decode JSON of a type. Raises `ValidationError`."""
    return adapter.validate_json(text, by_name=False)


def check_as(adapter: TypeAdapter[T], value: Any, context: Any = None) -> T:
    """Make a value of a type of what a reader has read. Raises `ValidationError`."""
    return adapter.validate_python(value, context=context)


def check_model(model: type[M], values: Any, **options: Any) -> M:
    """Make a model of what a reader has read. Raises `ValidationError`."""
    return model.model_validate(values, **options)


def read_model(model: type[M], text: Text) -> M:
    """Decode JSON of a model. Raises `ValidationError`."""
    return model.model_validate_json(bytes(text) if not isinstance(text, str) else text)
