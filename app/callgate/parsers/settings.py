"""The child processes that read documents, long lists and long requests."""

from typing import Annotated

from pydantic import Field

from callgate.config.schema.values import NO_BOOLEAN, Section


class Parsers(Section):
    """Processes beside the server that read what others wrote, where that is much: documents of APIs, long lists of tools, long
    requests and answers that litellm translates. None runs before it is needed."""

    processes: Annotated[int, Field(ge=1, le=64), NO_BOOLEAN] = 2
    """How many of each kind run at a time: those that read documents, and those with litellm, of 200 MB each. What finds all of
    them busy waits its turn, and is refused where many wait."""
    seconds: Annotated[float, Field(ge=1, le=600), NO_BOOLEAN] = 30.0
    """How long one may take, and as much time of the processor; then it is killed, and what it read is refused."""
    memory_bytes: Annotated[int, Field(ge=268_435_456), NO_BOOLEAN] = 1_073_741_824
    """The address space of each."""
