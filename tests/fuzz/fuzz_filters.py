"""The tools that a request names: refused with a 400, or a filter that lets through what `fnmatch` says, and warns well.

The first line of the input is what the request says; the others are names of tools, with their source before a slash.
"""

import fnmatch
from dataclasses import dataclass

from callgate.conversation.errors import ChatError
from callgate.tools.tool_filter import is_glob, narrowed, requested_filter, unmatched

TOOLS = 200


@dataclass(frozen=True)
class Tool:
    name: str
    address: str
    contested: bool = False

    @property
    def claimed(self) -> str:
        return self.name


def run(data: bytes) -> None:
    said, *names = data.decode("latin-1").split("\n")
    try:
        asked = requested_filter(said)
    except ChatError as error:
        assert error.status == 400, error  # noqa: PT017 - the error is one of two good ends
        return
    assert asked is not None
    tools = [Tool(name.rpartition("/")[2], name if "/" in name else f"config/{name}") for name in names[:TOOLS]]
    found = set(narrowed(tools, [asked]))
    for tool in tools:
        assert (tool in found) == any(_names(pattern, tool) for pattern in asked.patterns), (asked.patterns, tool)
    for each in unmatched(asked.patterns, tools, by_given_name=True):
        assert not any(_names(each.pattern, tool) for tool in tools)
        str(each).encode("ascii")


def _names(pattern: str, tool: Tool) -> bool:
    if not is_glob(pattern):
        return pattern in (tool.name, tool.address)
    return fnmatch.fnmatchcase(tool.address if "/" in pattern else tool.name, pattern)
