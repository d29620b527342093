"""Builds tools from an entry of `tools` that is Python."""

from collections.abc import Iterator

from msgspec.structs import replace

from callgate.tools.executor import Policy, Tool
from callgate.tools.kinds.python.function import functions_at, module_at, python_tool
from callgate.tools.kinds.python.hooks import StartedFirst, services_of
from callgate.tools.kinds.python.settings import PythonTool
from callgate.tools.kinds.python.threads import ThreadPool
from callgate.tools.policies import policy_of


def python_tools(entry: PythonTool, defaults: Policy, threads: ThreadPool) -> Iterator[Tool]:
    """Yield the tool of a function, or all of a module."""
    path = entry.function or entry.module or ""
    functions = functions_at(path)
    services = services_of(module_at(path), threads)
    for function in functions:
        tool = python_tool(
            function,
            threads,
            name=entry.name,
            description=entry.description,
            defaults=defaults,
            overrides=policy_of(entry),
        )
        if services:
            yield replace(tool, executor=StartedFirst(tool.executor, services), services=services)
        else:
            yield tool
