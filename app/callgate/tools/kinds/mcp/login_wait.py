"""What becomes of a call that cannot be made until somebody logs in.

One rule: where the server's entry lets it ask a person by a page (`elicitation: url` or `both`) and somebody may answer, the call waits on a
card with the address, and goes on by itself once the login is done. Everywhere else it fails at once, with the address in its text.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.tools.executor import CallContext, Executor
from callgate.tools.kinds.mcp.authorization import Authorization, Identity, NeedsLogin
from callgate.tools.kinds.mcp.elicitation import Mode
from callgate.tools.questions import AskPerson, BadQuestion, NobodyToAsk, Question, page_of

LOOK_SECONDS: Final = 0.5
"""How often a waiting call looks whether somebody has logged in, which may have been in another process."""
MAX_ASKED: Final = 5
"""How often a person who says that he is done, and is not logged in, is asked again."""


@dataclass(frozen=True, slots=True)
class AfterLogin:
    """Runs calls by another executor, after a login where they need one."""

    executor: Executor
    authorization: Authorization | None
    identity: Identity
    server: str
    modes: frozenset[Mode]

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        try:
            return await self.executor.execute(call, context)
        except NeedsLogin as needs_login:
            run = partial(self.executor.execute, call, context)
            return await after_login(
                needs_login, run, self.authorization, self.identity, self.server, self.modes, context
            )


async def after_login(
    needs_login: NeedsLogin,
    run: Callable[[], Awaitable[Outcome]],
    authorization: Authorization | None,
    identity: Identity,
    server: str,
    modes: frozenset[Mode],
    context: CallContext,
) -> Outcome:
    """Return what comes of a call that needs a login: where somebody can be asked, wait for that and run it again."""
    question = _question(server, needs_login)
    if question is None or context.ask is None or "url" not in modes:
        return refusal(needs_login)
    if not await _waited(question, context.ask, authorization, identity):
        return refusal(needs_login)
    try:
        return await run()
    except NeedsLogin as still_needed:
        return refusal(still_needed)


def refusal(needs_login: NeedsLogin) -> Failed:
    """Return the failure of a call that needs a login, with the address for whoever reads the model's answer."""
    text = f"Not run: {needs_login.words}"
    if needs_login.address and needs_login.address not in text:
        text += f" Give the person this address to log in, word for word: {needs_login.address}"
    return Failed(text, FailureKind.REFUSED)


def _question(server: str, needs_login: NeedsLogin) -> Question | None:
    """Return the card with the address; None where a login needs a command."""
    try:
        return Question(server, needs_login.words, url=page_of(needs_login.address))
    except BadQuestion:
        return None


async def _waited(question: Question, ask: AskPerson, authorization: Authorization | None, identity: Identity) -> bool:
    """Wait until somebody has logged in; False where nobody does."""
    for _ in range(MAX_ASKED):
        asking = asyncio.ensure_future(ask(question))
        try:
            while not asking.done():
                await asyncio.wait([asking], timeout=LOOK_SECONDS)
                if await _is_logged_in(authorization, identity):
                    return True
            if asking.result().action != "accept":
                return False
        except NobodyToAsk:
            return False
        finally:
            asking.cancel()
            await asyncio.wait([asking])
    return False


async def _is_logged_in(authorization: Authorization | None, identity: Identity) -> bool:
    if authorization is None:
        return True
    try:
        await authorization.headers(identity)
    except NeedsLogin:
        return False
    return True
