"""Decides what is recorded of requests, by the config."""

from collections.abc import Sequence

import msgspec

from callgate.recorder.settings import Record
from callgate.records.policy import NOT_KEPT, RecordPolicy
from callgate.tools.tool_filter import glob_matches


class RecordingRules:
    """What is recorded of requests: a policy for all, and rules for keys and models of which less is recorded."""

    def __init__(self, settings: Record) -> None:
        self._less = settings.less
        self.change(policy_of(settings))

    def change(self, policy: RecordPolicy) -> None:
        """Change the policy of all requests."""
        self._policy = policy
        self.common_policy: RecordPolicy | None = None
        """The policy of all requests; None where it depends on the key, the model or the request."""
        if not self._less and policy.content_bytes is None:
            self.common_policy = policy

    def records(self, *, with_tools: bool) -> bool:
        """Return whether runs are recorded, from the beginning or only when they fail."""
        return self._policy.runs != "off" and (with_tools or self._policy.passed == "all")

    def policy(self, key: str, models: Sequence[str] = (), *, content: bool = True) -> RecordPolicy:
        """Return what is recorded of a request with this key. `models`: the names of its model, as the client and as the config
        write it. `content`: false where the request wants no content stored."""
        for less in self._less:
            if _fits(less.keys, (key,)) and _fits(less.models, models):
                if less.keep == "off":
                    return NOT_KEPT
                content = False
        if content:
            return self._policy
        return msgspec.structs.replace(self._policy, content_bytes=None)


def policy_of(settings: Record) -> RecordPolicy:
    return RecordPolicy(
        runs=settings.runs,
        passed=settings.passed,
        content_bytes=settings.content_bytes if settings.content else None,
        wire=settings.wire,
        keep_days=settings.keep.days,
        keep_bytes=settings.keep.bytes,
        wire_days=settings.wire_keep.days,
    )


def _fits(globs: Sequence[str], names: Sequence[str]) -> bool:
    return not globs or any(glob_matches(glob, name) for glob in globs for name in names)
