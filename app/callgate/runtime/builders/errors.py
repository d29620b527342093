"""What is raised where nothing can be built from an entry of the config."""


class BadEntry(ValueError):
    """An entry of the config from which nothing can be made, with its place and the reason. For the operator."""

    def __init__(self, path: tuple[str | int, ...], name: str | None, reason: str) -> None:
        super().__init__(f"{'.'.join(map(str, path))}{f' ({name})' if name else ''}: {reason}")
        self.path = path
        self.reason = reason


class BadTool(BadEntry):
    """An entry of `tools`."""


class BadModel(BadEntry):
    """An entry of `model_list`."""
