"""Conversations as providers answer them, each turn taken down in both modes, with what must come of them.

One JSON file each. A new quirk arrives as a new file. The keys:

    name, about, provider   the file's name, what it shows, whose way of writing it is
    request                 fields of the client's request: messages, its own tools, others
    house_tools             server-side tools on offer, by their names in `tests.harness.toolshed`; exports name it so
    tools                   the tools as they were offered, in what `callgate runs export` writes
    replies                 what the model answers, in order: `chunks` and `end` for a stream, `whole` for a body
                            (and the `verdicts` of its calls, in what `callgate runs export` writes)
    toolless                what it answers when no tools are offered (where a loop ends at its limit)
    expect                  what the client gets and what happens on the way, the same in both modes:
      content, refusal, finish_reason, usage    of the answer; null content may also be an empty text
      tool_calls            those handed back: id, name, arguments as text
      ran                   calls that ran, by turn and in their order: name and arguments
      results               what the model is sent about each call, by id: the exact text, or
                            {"contains": text}, {"flaw": why it was not run}, {"not_run": why}
      reasoning             reasoning texts the client is sent, in order
      echo                  fields that the turns' assistant messages carry when they go back, turn by turn
      requests              how often the model is asked
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.scripted_upstream import Reply, RequestRecord, Script, Upstream, recorded_reply

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Expected:
    content: str | None
    refusal: str | None
    finish_reason: str
    tool_calls: Sequence[Mapping[str, str]]
    ran: Sequence[Mapping[str, Any]]
    results: Mapping[str, str | Mapping[str, str]]
    reasoning: Sequence[str]
    echo: Sequence[Mapping[str, Any]]
    usage: Mapping[str, Any] | None
    requests: int


@dataclass(frozen=True, slots=True)
class Recording:
    name: str
    about: str
    provider: str
    request: Mapping[str, Any]
    house_tools: Sequence[str]
    replies: Sequence[Mapping[str, Any]]
    expect: Expected
    toolless: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()

    def play_on(self, upstream: Upstream, model: str | None = None) -> Script:
        """Puts the conversation on the upstream, under the recording's name or another."""
        return upstream.script(model or self.name, Playing(self))


class Playing:
    """Chooses the reply of one conversation: the next one, or the toolless one when no tools are offered."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._at = 0

    def __call__(self, request: RequestRecord) -> Reply:
        recording = self._recording
        if recording.toolless is not None and not request.body.get("tools"):
            return recorded_reply(recording.toolless)
        assert self._at < len(recording.replies), f"{recording.name} has no reply {self._at + 1}"
        self._at += 1
        return recorded_reply(recording.replies[self._at - 1])


def load(path: Path) -> Recording:
    found = json.loads(path.read_text(encoding="utf-8"))
    return Recording(**{**found, "expect": Expected(**found["expect"])})


def load_all() -> list[Recording]:
    """Every recording, by name."""
    return [load(path) for path in sorted(FOLDER.glob("*.json"))]
