"""Expressions that take of a result what the model needs."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

MAX_CHARACTERS: Final = 1000
MAX_NESTING: Final = 50


def _compiles(expression: str) -> str:
    """Refuse what is no JMESPath, at the place where it is wrong."""
    import jmespath  # with the first expression of a config
    from jmespath.exceptions import JMESPathError

    depth = 0
    for character in expression:
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_NESTING:
            raise PydanticCustomError(
                "select", "should be nested {most} deep at most, and is deeper", {"most": MAX_NESTING}
            )
    try:
        jmespath.compile(expression)
    except (JMESPathError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PydanticCustomError("select", "should be a JMESPath expression: {reason}", {"reason": reason}) from None
    return expression


Expression: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS), AfterValidator(_compiles)]
Select: TypeAlias = Expression | Mapping[Annotated[str, Field(min_length=1)], Expression]


def by_name(select: Any) -> Mapping[str, str]:
    """Return the expressions by the names and globs of tools that they are for."""
    if select is None:
        return {}
    if isinstance(select, str):
        return {"*": select}
    return dict(select)
