"""Checks the permissions of a caller for runs, usage, metrics and administration."""

from starlette.requests import Request

from callgate.api.middleware import context_of
from callgate.auth.keys import Caller
from callgate.conversation.errors import ChatError
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


def check_decider(caller: Caller) -> None:
    if not caller.may_approve:
        raise _forbidden("This key may not decide about calls.", "approval_not_allowed")


def _forbidden(message: str, code: str) -> ChatError:
    return ChatError(403, message, type="permission_error", code=code)
