"""Builds the guardrails of a config for one command, without a server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from callgate.cli.shared import give_up
from callgate.config.entry_errors import BadEntry
from callgate.config.load import Loaded
from callgate.conversation.events import GuardrailJudged
from callgate.tools.registry import Registry

if TYPE_CHECKING:
    from callgate.runtime.guarding import ChatGuard

NOBODYS_KEY = "anonymous"
"""The name by which hooks know who comes without a key."""


@asynccontextmanager
async def opened_guard(
    loaded: Loaded, registry: Registry, say: Callable[[GuardrailJudged], Awaitable[None]]
) -> AsyncIterator["ChatGuard | None"]:
    """Open what guards calls that are made by hand; None where the config has no hooks. `say` hears what they judge."""
    if not loaded.config.guardrails:
        yield None
        return
    from callgate.guardrails.building import guardrails_of
    from callgate.guardrails.descriptions import DescriptionScreen
    from callgate.runtime.guarding import ChatGuard
    from callgate.runtime.limits import threads_of
    from callgate.tools.kinds.http.client import Web

    web = Web()
    threads = threads_of(loaded.config)
    try:
        try:
            guardrails = guardrails_of(loaded.config, lambda: web, threads, lambda judged: None)
        except BadEntry as error:
            raise give_up(loaded.complaint(*error.mistakes())) from None
        if guardrails.of_descriptions:
            await registry.screen_with(DescriptionScreen(guardrails))
        hooks = guardrails.of((), NOBODYS_KEY)
        yield ChatGuard(guardrails.chat(hooks, model="", key=NOBODYS_KEY, run_id="run_by_hand", say=say))
    finally:
        threads.close()
        await web.close()
