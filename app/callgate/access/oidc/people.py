"""Who shows a token of the issuer is a caller with the rights of his group. What was verified is remembered until the token ends."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from callgate.access.oidc.issuer import Issuer
from callgate.access.oidc.signing_keys import SigningKey
from callgate.access.oidc.tokens import TokenIdentity, TokenRules, taken_apart, verified
from callgate.callers.allowance import UNLIMITED, Allowance
from callgate.callers.caller import Caller, Person
from callgate.callers.tokens import KeysWanted, TokenEnded, TokenRefused
from callgate.conversation.errors import ChatError

REMEMBERED: Final = 10_000
"""Tokens whose callers are known without verifying them again."""
EVERYBODY: Final = "*"

Key = TypeVar("Key", bytes, str)


@dataclass(frozen=True, slots=True)
class GroupRights:
    """What the members of a group may."""

    name: str
    rights: Caller
    """A caller of no name, with the rights of each member and the limits of all together."""
    alone: Allowance = UNLIMITED
    """The limits of each member."""


class NoGroup(ChatError):
    """A 403 for somebody whose groups have no rights here."""

    def __init__(self, identity: TokenIdentity) -> None:
        why = "none of your groups has rights here; ask whoever operates this server"
        if identity.has_more_groups:
            why = (
                "your groups are too many to stand in a token, so that none is known; have the issuer write only the groups that"
                " are assigned to this application, or roles"
            )
        super().__init__(
            403, f"You are signed in as {identity.shown}, and {why}.", type="permission_error", code="no_group"
        )


class _SignIn(msgspec.Struct, frozen=True):
    """Somebody whose token was verified."""

    identity: TokenIdentity
    key: SigningKey
    """What it was signed with."""
    caller: Caller


class SignedIn(msgspec.Struct, kw_only=True):
    """Whose tokens were verified."""

    of_token: dict[bytes, _SignIn] = {}
    """By the hash of the token; the one that was not seen for longest first."""
    of_name: dict[str, _SignIn] = {}
    """By the caller's name, of the token that he began to show last."""
    keys_seen: int
    """The generation of the issuer's keys by which they were verified."""
    next_end: float = math.inf


class People:
    """The callers that tokens of one issuer stand for, by one config."""

    def __init__(
        self,
        rules: TokenRules,
        groups: Sequence[GroupRights],
        issuer: Issuer,
        on_token: Callable[[str], None],
        before: SignedIn | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_token` is told of each token that is verified, `accepted` or why not. `before`: who signed in by the
        config that this one replaces, with the same rules and the same issuer; their tokens are not verified again."""
        self._rules = rules
        self._groups: Mapping[str, GroupRights] = {group.name: group for group in groups}
        self._place = rules.issuer.removeprefix("https://")
        self._issuer = issuer
        self._on_token = on_token
        self._clock = clock
        self._ends = 0
        self._generation = 0
        self.signed_in = SignedIn(keys_seen=issuer.generation)
        if before is not None:
            self.signed_in = SignedIn(
                of_token=self._with_rights_of_now(before.of_token),
                of_name=self._with_rights_of_now(before.of_name),
                keys_seen=before.keys_seen,
                next_end=before.next_end,
            )

    def identify(self, token: str) -> Caller:
        """Return the caller of a token. Raises `TokenRefused`, `NoGroup`, and `KeysWanted` where its key has to be fetched."""
        now = self._clock()
        self._look_again(now)
        digest = sha256(token.encode(errors="surrogatepass")).digest()
        visit = self.signed_in.of_token.pop(digest, None)
        if visit is None:
            visit = self._first_seen(token, now)
            _put(self.signed_in.of_name, visit.caller.name, visit)
            self.signed_in.next_end = min(self.signed_in.next_end, visit.identity.ends)
        elif now >= visit.identity.ends:
            raise TokenEnded
        _put(self.signed_in.of_token, digest, visit)
        return visit.caller

    def known(self, name: str) -> Caller | None:
        """Return the caller of that name, if the last token that he has shown here still counts."""
        now = self._clock()
        self._look_again(now)
        latest = self.signed_in.of_name.get(name)
        if latest is None or now >= latest.identity.ends:
            return None
        return latest.caller

    def generation(self) -> int:
        """Return a number that changes when a token ends, and when a key of the issuer is gone."""
        self._look_again(self._clock())
        return self._generation

    def last_generation(self) -> int:
        """Return that number as it was when somebody looked last."""
        return self._generation

    def _look_again(self, now: float) -> None:
        self._issuer.look_in_time()
        signed_in = self.signed_in
        if self._issuer.generation != signed_in.keys_seen:
            signed_in.keys_seen = self._issuer.generation
            signed_in.of_token = self._of_published_keys(signed_in.of_token)
            signed_in.of_name = self._of_published_keys(signed_in.of_name)
        if now >= signed_in.next_end:
            self._ends += 1
            ends = (visit.identity.ends for visit in signed_in.of_token.values())
            signed_in.next_end = min((end for end in ends if end > now), default=math.inf)
        self._generation = self._ends + signed_in.keys_seen

    def _of_published_keys(self, visits: Mapping[Key, _SignIn]) -> dict[Key, _SignIn]:
        keys = () if self._issuer.keys is None else self._issuer.keys.keys
        return {name: visit for name, visit in visits.items() if visit.key in keys}

    def _with_rights_of_now(self, visits: Mapping[Key, _SignIn]) -> dict[Key, _SignIn]:
        """Return who is known with what the groups of this config say."""
        now: dict[Key, _SignIn] = {}
        for name, visit in visits.items():
            caller = self._caller_of(visit.identity)
            if caller is not None:
                now[name] = replace(visit, caller=caller)
        return now

    def _first_seen(self, token: str, now: float) -> _SignIn:
        try:
            visit = self._verified(token, now)
        except TokenRefused as refused:
            self._on_token(refused.reason)
            raise
        except NoGroup:
            self._on_token("no_group")
            raise
        self._on_token("accepted")
        return visit

    def _verified(self, token: str, now: float) -> _SignIn:
        parts = taken_apart(token, self._rules)
        keys = self._issuer.keys
        key = None
        if keys is not None:
            key = keys.find(parts.kid, parts.algorithm)
        if key is None:
            if keys is None or (not keys.knows(parts.kid) and self._issuer.may_look()):
                raise KeysWanted(self._look_at_keys)
            raise TokenRefused("it is signed with none of the keys of its issuer", "key")
        identity = verified(parts, key, self._rules, now)
        caller = self._caller_of(identity)
        if caller is None:
            raise NoGroup(identity)
        return _SignIn(identity, key, caller)

    async def _look_at_keys(self) -> None:
        if self._issuer.may_look():
            await self._issuer.look()

    def _caller_of(self, identity: TokenIdentity) -> Caller | None:
        """Return the caller with the rights of the first group of the config that somebody is in; None where there is none."""
        own = frozenset(identity.groups)
        group = next((group for name, group in self._groups.items() if name in own or name == EVERYBODY), None)
        if group is None:
            return None
        name = f"{identity.subject}@{self._place}"
        rights = group.rights
        account = f"group:{group.name}"
        alone = group.alone
        if rights.allowance is UNLIMITED and alone is not UNLIMITED:
            rights = replace(rights, allowance=alone)
            account = name
            alone = UNLIMITED
        person = Person(self._rules.issuer, identity.subject, identity.shown, group.name, account, alone)
        return replace(rights, name=name, person=person)


def _put(visits: dict[Key, _SignIn], name: Key, newest: _SignIn) -> None:
    """Put somebody at the end, and forget who was not seen for longest where there are too many."""
    visits.pop(name, None)
    if len(visits) >= REMEMBERED:
        del visits[next(iter(visits))]
    visits[name] = newest
