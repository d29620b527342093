"""Builds the limits of one request, and the concurrency limit that all tools of the process share."""

from callgate.config.schema.whole import Config
from callgate.conversation.loop import Rules
from callgate.tools.kinds.command.process import CommandProcesses
from callgate.tools.kinds.python.threads import ThreadPool


def rules_of(config: Config) -> Rules:
    return Rules(
        max_iterations=config.loop.max_iterations,
        max_failed_turns=config.loop.max_failed_turns,
        max_repeats=config.loop.max_repeats,
        max_tokens=config.limits.request_tokens,
        max_parallel_calls=config.loop.max_parallel_calls,
        max_calls_per_turn=config.limits.calls_per_turn,
        argument_bytes=config.limits.argument_bytes,
    )


def threads_of(config: Config) -> ThreadPool:
    """Build the thread pool of all tools that are Python functions."""
    return ThreadPool(config.limits.tool_threads)


def processes_of(config: Config) -> CommandProcesses:
    """Build the limit of child processes of all tools."""
    return CommandProcesses(config.limits.child_processes)
