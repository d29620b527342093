"""Says who a caller is, and what each may. Who knows the keys is put in; without them every caller is anonymous."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from callgate.callers.caller import ANONYMOUS, Caller, owner_name
from callgate.conversation.errors import ChatError


class Access:
    """Says who a caller is, and what each may."""

    def __init__(
        self,
        keys: "Keys",
        refusal: Callable[[Mapping[str, str]], ChatError | None],
        *,
        is_local: bool,
        keyless_approve: bool | None = None,
    ) -> None:
        """`refusal` returns the error for the headers of a foreign web page. `is_local`: only this machine can call.
        `keyless_approve`: whether callers without a key may decide about approvals, where that is not to follow from it."""
        self._keys = keys
        self._refusal = refusal
        self._is_local = is_local
        self.generation = keys.generation
        """Returns a number that changes with every change of the keys, here or in another process, and when one expires."""
        self.last_generation = keys.last_generation
        """Returns the number as it was when somebody looked last."""
        self._keyless_approve = is_local if keyless_approve is None else keyless_approve

    @property
    def is_keyless(self) -> bool:
        """True if no key is required."""
        return self._keys.open

    def admit(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller of a request, or raise an error. Every route calls this."""
        self.check_origin(headers)
        return self._keys.identify(headers)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse requests of foreign web pages."""
        if (refusal := self._refusal(headers)) is not None:
            raise refusal

    def caller_named(self, owner: str) -> Caller | None:
        """Return the caller for an owner's name, if its key is still valid."""
        return self._keys.known(owner)

    def may_administer(self, caller: Caller) -> bool:
        """Return whether a caller may reload the config. Without keys only requests from this machine may."""
        return caller.admin or (caller.anonymous and self._is_local)

    def may_approve(self, caller: Caller) -> bool:
        """Return whether a caller may decide about approvals. Without keys the config says who may."""
        return caller.approve or (caller.anonymous and self._keyless_approve)

    def may_see_metrics(self, caller: Caller) -> bool:
        """Return whether a caller may see all models and tools, and their usage."""
        return self.may_see_all(caller) or ("*" in caller.models and "*" in caller.tools)

    def may_see(self, caller: Caller) -> bool:
        """Return whether a caller may see its own runs."""
        return caller.see != "none" or self.may_see_all(caller)

    def may_see_all(self, caller: Caller) -> bool:
        """Return whether a caller may see the runs of all keys."""
        return caller.see == "all" or self.may_administer(caller)

    def rights(self, caller: Caller) -> dict[str, Any]:
        """Describe what a caller may, whether its key or its group says so or the server has no keys."""
        person = caller.person
        signed_in = {}
        if person is not None:
            signed_in = {"signed_in": {"name": person.shown, "group": person.group, "issuer": person.issuer}}
        return {
            "name": caller.name,
            **signed_in,
            "anonymous": caller.anonymous,
            "see": "all" if self.may_see_all(caller) else caller.see,
            "approve": self.may_approve(caller),
            "admin": self.may_administer(caller),
            "models": caller.models,
            "tools": caller.tools,
        }


class CallerMemory:
    """Remembers the caller of requests that have the same headers, but for those of their bodies."""

    __slots__ = ("_access", "_caller", "_generation")

    def __init__(self) -> None:
        self._access: Access | None = None
        self._generation = 0
        self._caller = ANONYMOUS

    def admit_fast(self, access: Access, headers: Mapping[str, str]) -> Caller:
        """Return the caller, or raise the error, that `access.admit` does. Equals it for all of these requests: a caller is remembered
        for as long as no key changes, ends or comes, and a person's token, which ends by itself, is looked at each time."""
        if self._access is access and self._generation == access.generation():
            return self._caller
        caller = access.admit(headers)
        if not caller.anonymous and caller.person is None:
            self._access = access
            self._generation = access.last_generation()  # of the look by which it was admitted just now
            self._caller = caller
        return caller


class Keys(Protocol):
    """Knows the callers by their keys."""

    @property
    def open(self) -> bool:
        """True if no key is required."""
        ...

    def generation(self) -> int:
        """Return a number that changes with every change of the keys, here or in another process, and when one expires."""
        ...

    def last_generation(self) -> int:
        """Return that number as it was when somebody looked last. Who compares it later misses no change since."""
        ...

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller. Raises `ChatError` 401. Header names are lower case, as in ASGI and starlette."""
        ...

    def known(self, owner: str) -> Caller | None:
        """Return the caller that `owner_name` gave this name, if its key is still valid."""
        ...


class NoKeys:
    """Knows no key, so that every caller is anonymous."""

    open: Final = True

    def generation(self) -> int:
        return 0

    def last_generation(self) -> int:
        return 0

    def identify(self, headers: Mapping[str, str]) -> Caller:
        return ANONYMOUS

    def known(self, owner: str) -> Caller | None:
        if owner == owner_name(ANONYMOUS):
            return ANONYMOUS
        return None
