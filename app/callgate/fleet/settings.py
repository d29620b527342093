"""Pools of workers that tools may run on."""

from typing import Annotated, TypeAlias

from callgate.config.schema.values import Seconds, Section, Switch, shape

PoolName: TypeAlias = Annotated[str, shape(r"^[A-Za-z0-9_-]{1,40}$", "should be 1 to 40 letters, digits, `_` or `-`")]


class Pool(Section):
    """Workers that are alike, on any machines: those that were started with `callgate worker --pool NAME`."""

    queue_seconds: Seconds = 60.0
    """How long a call waits for a worker to begin it; its own `timeout` counts from its beginning."""
    fresh_process: Switch = False
    """Run each call in a process of its own, which imports the tools again: for tools that leak memory or must be isolated."""
