"""Checks the permissions of a caller for runs, usage, metrics and administration."""

from starlette.requests import Request

from callgate.api.middleware import context_of
from callgate.auth.keys import Caller, owner_name
from callgate.conversation.errors import ChatError
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime


def caller_of(request: Request, route: str) -> Caller:
    """Return the caller of a request, and set its route for metrics."""
    context = context_of(request.scope)
    context.route = route
    assert context.caller is not None, "the middleware requires a caller here"
    return context.caller


def seen_by(runtime: Runtime, caller: Caller, what: str = "see runs") -> str | None:
    """Return the name of the key whose runs a caller may see, None for all. Raises where it may see none."""
    if runtime.may_see_all(caller):
        return None
    if caller.see == "own":
        return caller.name
    if caller.anonymous:
        why = "because this server listens on more than loopback: make one with `see: own` or `see: all`"
        raise _forbidden(f"Nobody may {what} without a key, {why}.", "see_not_allowed")
    raise _forbidden(f"This key may not {what} (`see: own` or `see: all`).", "see_not_allowed")


def check_sees_all(runtime: Runtime, caller: Caller, what: str) -> None:
    if not runtime.may_see_all(caller):
        raise _forbidden(f"{what} needs a key with `see: all`.", "see_not_allowed")


def check_admin(runtime: Runtime, caller: Caller) -> None:
    """Raise unless a caller may administer the server."""
    if not runtime.may_administer(caller):
        raise _forbidden("This needs a key with `admin: on`.", "admin_not_allowed")


def check_decider(runtime: Runtime, caller: Caller) -> None:
    """Raise unless a caller may decide about approvals."""
    if runtime.may_approve(caller):
        return
    who = "Nobody may decide about calls without a key" if caller.anonymous else "This key may not decide about calls"
    raise _forbidden(f"{who}.", "approval_not_allowed")


class StandingRights:
    """The rights of a request that stays open, asked again while it is answered."""

    def __init__(self, manager: RuntimeManager, request: Request) -> None:
        self._manager = manager
        self._headers = request.headers

    def caller(self) -> Caller | None:
        """Return who asks, by the keys of now; None where the request would be refused."""
        try:
            return self._manager.current.admit(self._headers)
        except ChatError:
            return None

    def seen(self) -> tuple[bool, str | None]:
        """Return whether runs may still be seen, and the name of the key whose runs; None for all."""
        caller = self.caller()
        if caller is None:
            return False, None
        try:
            return True, seen_by(self._manager.current, caller)
        except ChatError:
            return False, None

    def owner(self) -> str | None:
        """Return the owner of what the caller may fetch; None where the request would be refused."""
        caller = self.caller()
        return None if caller is None else owner_name(caller)


def _forbidden(message: str, code: str) -> ChatError:
    return ChatError(403, message, type="permission_error", code=code)
