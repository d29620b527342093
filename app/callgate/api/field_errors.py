"""The errors for fields of a request."""

from callgate.conversation.errors import ChatError


def from_validation(text: str) -> ChatError:
    """Convert a msgspec error such as ``Expected `str`, got `int` - at `$.messages[0].role` ``."""
    what, _, where = text.partition(" - at `$")
    param = where.rstrip("`").lstrip(".")
    if (missing := what.removeprefix("Object missing required field `")) != what:
        missing = missing.partition("`")[0]
        name = f"{param}.{missing}" if param else missing
        return wrong(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    if not param:
        return ChatError(400, f"The body of the request must be a JSON object. {what}.", code="invalid_type")
    return wrong(param, f"Invalid type or value for '{param}': {what[:1].lower()}{what[1:]}.", "invalid_type")


def wrong(param: str, message: str, code: str = "invalid_value") -> ChatError:
    return ChatError(400, message, param=param, code=code)
