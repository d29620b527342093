"""Decides what is recorded of requests, by the config."""

from collections.abc import Sequence
from typing import Final

import msgspec

from callgate.callers.caller import ANONYMOUS, owner_name
from callgate.recorder.settings import Record
from callgate.records.policy import NOT_KEPT, RecordPolicy
from callgate.tools.tool_filter import glob_matches

OWNERS_KNOWN: Final = 1000
"""The owners whose policy is made once. All requests without a key have one owner."""


class RecordingRules:
    """What is recorded of requests: a policy for all, and rules for keys and models of which less is recorded."""

    def __init__(self, settings: Record, *, keeps_texts: bool = False, is_for_one_person: bool = False) -> None:
        """`keeps_texts`: whether texts are kept where the config says nothing of them. `is_for_one_person`: nobody needs a key, and
        nobody else reaches the server."""
        self._less = settings.less
        self._content_bytes = settings.content_bytes
        self._is_unsaid = settings.content is None
        self.keeps_of_keyless = is_for_one_person if self._is_unsaid else False
        """Whether texts of requests without a key are kept in memory."""
        self.change(policy_of(settings, keeps_texts=keeps_texts))

    def change(self, policy: RecordPolicy) -> None:
        """Change the policy of all requests."""
        self._policy = policy
        self._private: dict[str, RecordPolicy] = {}
        self.common_policy: RecordPolicy | None = None
        """The policy of all requests; None where it depends on the key, the model or the request."""
        self.keyless_policy: RecordPolicy | None = None
        """The same for requests without a key."""
        if not self._less and policy.content_bytes is None:
            if self.keeps_of_keyless:
                self.keyless_policy = self._private_policy(owner_name(ANONYMOUS))
            else:
                self.common_policy = policy
                self.keyless_policy = policy

    def records(self, *, with_tools: bool) -> bool:
        """Return whether runs are recorded, from the beginning or only when they fail."""
        return self._policy.runs != "off" and (with_tools or self._policy.passed == "all")

    def policy(
        self, key: str, models: Sequence[str] = (), *, content: bool = True, private_to: str = ""
    ) -> RecordPolicy:
        """Return what is recorded of a request with this key. `models`: the names of its model, as the client and as the config
        write it. `content`: false where the request wants no content stored. `private_to`: the owner for whom texts are kept in
        memory, where the config says nothing of them."""
        for less in self._less:
            if _fits(less.keys, (key,)) and _fits(less.models, models):
                if less.keep == "off":
                    return NOT_KEPT
                content = False
        if content:
            if private_to and self._is_unsaid and self._policy.content_bytes is None:
                return self._private.get(private_to) or self._private_policy(private_to)
            return self._policy
        return msgspec.structs.replace(self._policy, content_bytes=None)

    def _private_policy(self, owner: str) -> RecordPolicy:
        """Return the policy by which texts are kept in memory for an owner."""
        policy = msgspec.structs.replace(self._policy, content_bytes=self._content_bytes, private_to=owner)
        if len(self._private) < OWNERS_KNOWN:
            self._private[owner] = policy
        return policy


def policy_of(settings: Record, *, keeps_texts: bool = False) -> RecordPolicy:
    """Return the policy of the config. `keeps_texts`: whether texts are kept where the config says nothing of them."""
    with_texts = settings.content
    if with_texts is None:
        with_texts = keeps_texts
    return RecordPolicy(
        runs=settings.runs,
        passed=settings.passed,
        content_bytes=settings.content_bytes if with_texts else None,
        wire=settings.wire,
        keep_days=settings.keep.days,
        keep_bytes=settings.keep.bytes,
        wire_days=settings.wire_keep.days,
    )


def _fits(globs: Sequence[str], names: Sequence[str]) -> bool:
    return not globs or any(glob_matches(glob, name) for glob in globs for name in names)
