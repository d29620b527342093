"""The error for an entry of the config from which nothing can be built."""

from collections.abc import Sequence


class BadEntry(ValueError):
    """An entry of the config from which nothing can be built, with its place and the reason. For the operator."""

    def __init__(self, path: tuple[str | int, ...], name: str | None, reason: str) -> None:
        super().__init__(f"{'.'.join(map(str, path))}{f' ({name})' if name else ''}: {reason}")
        self.path = path
        self.reason = reason
        self.others: Sequence[BadEntry] = ()

    def mistakes(self) -> list[tuple[tuple[str | int, ...], str]]:
        """Return the places and reasons of this error and of those found with it."""
        return [(error.path, error.reason) for error in (self, *self.others)]


def raise_all(errors: Sequence[BadEntry]) -> None:
    """Raise the first error with the others attached, if there are any, so that the operator sees all of them."""
    if errors:
        errors[0].others = errors[1:]
        raise errors[0]


class BadTool(BadEntry):
    """An entry of `tools`."""


class BadModel(BadEntry):
    """An entry of `model_list`."""
