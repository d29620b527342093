"""Builds a tool from an entry of `tools` that is a command line."""

from msgspec.structs import replace

from callgate.tools.executor import Policy, Tool
from callgate.tools.kinds.command.command import CommandLine
from callgate.tools.kinds.command.process import CommandProcesses, Paths, ProcessLimits
from callgate.tools.kinds.command.settings import CommandTool
from callgate.tools.policies import in_clear, tool_of


def command_tool(entry: CommandTool, defaults: Policy, processes: CommandProcesses) -> Tool:
    limits = entry.limits
    paths = None
    if entry.paths is not None:
        paths = Paths(read=entry.paths.read, write=entry.paths.write)
    executor = CommandLine(
        processes,
        argv=entry.argv,
        parameters=entry.parameters,
        cwd=entry.cwd,
        stdin=entry.stdin,
        env=in_clear(entry.env),
        allow_options=entry.allow_options,
        ok_codes=entry.ok_codes,
        limits=ProcessLimits(**{name: getattr(limits, name) for name in type(limits).model_fields}),
        paths=paths,
        pid_namespace=entry.pid_namespace,
    )
    program = entry.argv[0]
    if not isinstance(program, str):
        program = " ".join(program)
    return replace(tool_of(entry, executor, defaults, program), queue=processes.queue)
