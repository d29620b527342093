"""Says in words what the hooks of a config do, and tries those that ask a server."""

import asyncio
from collections.abc import Iterator

from callgate.config.schema.whole import Config
from callgate.guardrails.guardrails import Guardrails
from callgate.guardrails.hook import Guardrail
from callgate.guardrails.settings import HookEntry, PatternsHook, PythonHook, SizesHook
from callgate.guardrails.verdicts import GuardEvent
from callgate.guardrails.webhook import Webhook

QUESTION = "callgate doctor"
"""What a server is shown to see whether it answers."""


def lines_of_hooks(config: Config) -> Iterator[str]:
    """Yield a line for each hook, in their order."""
    for entry in config.guardrails:
        parts = [f"guardrail {entry.name} at {', '.join(entry.at)}: {_does(entry)}"]
        for name in ("models", "keys", "tools"):
            if names := getattr(entry, name):
                parts.append(f"only {name} {', '.join(names)}")
        if entry.on_error == "open":
            parts.append("what it cannot judge passes")
        yield "; ".join(parts)


def _does(entry: HookEntry) -> str:
    match entry:
        case PatternsHook():
            return f"{entry.then}s {', '.join((*entry.find, *entry.own))}"
        case SizesHook():
            limits = {"bytes": entry.max_bytes, "tokens": entry.max_tokens}
            return f"blocks more than {' or '.join(f'{most} {unit}' for unit, most in limits.items() if most)}"
        case PythonHook():
            return f"asks {entry.function}"
        case _:
            return "asks a server"


async def servers_that_answer(guardrails: Guardrails) -> dict[str, str]:
    """Ask each server something harmless; return by the names of their hooks why it gave no verdict, empty where it did."""
    asked = [hook for hook in guardrails.hooks if isinstance(hook.check, Webhook)]
    reasons = await asyncio.gather(*map(_failure, asked))
    return {hook.name: reason for hook, reason in zip(asked, reasons, strict=True)}


async def _failure(hook: Guardrail) -> str:
    try:
        async with asyncio.timeout(hook.seconds):
            await hook.check.check(GuardEvent(point="request", texts=[QUESTION]))
    except TimeoutError:
        return f"no answer in {hook.seconds:g} s"
    except Exception as error:  # noqa: BLE001 - what a server answers may be anything
        return f"{type(error).__name__}: {error}"[:200]
    return ""
