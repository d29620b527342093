"""From what happened in a chat to what is recorded of it. Runs in the recorder's thread, or for whoever looks at a run that
is under way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from callgate.calls.outcome import Failed, Returned
from callgate.calls.states import BrokenCall, Call, ReadyCall
from callgate.conversation.events import (
    Attempt,
    CallEnded,
    CallProgress,
    CallsHandedBack,
    CallStarted,
    ChatEnded,
    ChatEvent,
    ChatFailed,
    Responder,
    TurnAccount,
    TurnEnded,
    TurnStarted,
)
from callgate.conversation.listeners import handles
from callgate.conversation.ports import APPROVAL_GIVEN, APPROVAL_WANTED
from callgate.conversation.prices import MOST_TOKENS, NANO, Price, counted
from callgate.recorder.row import Kept, Recording, RunEvent, RunRow

Seen: TypeAlias = tuple[float, int, ChatEvent]
"""An event, when it happened (seconds since the run began), and in which choice."""
Mask: TypeAlias = Callable[[str], str]
"""Masks the secrets in a text."""
PriceOf: TypeAlias = Callable[[Responder], Price | None]
"""What who answers costs, as far as it is known without asking anybody."""


def no_price(by: Responder) -> Price | None:
    return None


WIRE: Final = "wire."
"""What the names of bodies of providers' answers begin with. They are there for people: nothing is done again from them."""
NAME_CHARACTERS: Final = 64
"""Of a tool's name: none on offer is longer, and a model may make up others."""
USAGE_NAMES: Final = 32
"""Of what a provider counts in a turn."""
PREVIEW_CHARACTERS: Final = 200
"""Of what a tool says while it runs: a word for a person, not a result."""

MASKED_BEYOND: Final = 16 * 1024
"""Characters that are looked at for secrets beyond what is kept: no secret is longer."""


_READERS: Final[dict[type, Callable[..., tuple[str, int | None, Mapping[str, Any]]]]] = {}


class RunReader:
    """Reads the events of one run, in order."""

    def __init__(self, row: RunRow, mask: Mask, content_bytes: int | None, price: PriceOf = no_price) -> None:
        """`content_bytes`: how much of each text is kept; None keeps none of them."""
        self._row = msgspec.structs.replace(row)
        self._mask = mask
        self._price = price
        self._nano: int | None = 0
        """What it cost so far; None once a price was not known."""
        self._most = content_bytes
        self._events: list[RunEvent] = []
        self.content: dict[str, str] = {}
        self._cut: list[str] = []
        self._findings: dict[str, None] = {}
        self._tools: dict[str, None] = {}
        self._attempts: dict[tuple[int, int], int] = {}
        self._at = 0.0

    def feed(self, seen: Iterable[Seen]) -> None:
        for at, choice, event in seen:
            read = _READERS.get(type(event))
            if read is not None:
                self._at = at
                kind, turn, facts = read(self, event, choice)
                self._events.append(RunEvent(at, kind, choice, turn, facts))

    def say(self, part: str, text: str) -> None:
        """Keep a text, masked, if texts are kept."""
        if self._most is None or not text:
            return
        # Masked before it is cut, or the beginning of a secret would stay; and not all of what will be cut anyway.
        encoded = self._mask(text[: self._most + MASKED_BEYOND]).encode(errors="replace")
        if len(text) > self._most + MASKED_BEYOND or len(encoded) > self._most:
            self._cut.append(part)
        self.content[part] = encoded[: self._most].decode(errors="ignore")

    def take_events(self) -> list[RunEvent]:
        """What was read since the last time; for whoever follows a run."""
        taken, self._events = self._events, []
        return taken

    def finish(self) -> Recording:
        row = self._row
        row.findings, row.tools = list(self._findings), list(self._tools)
        if self._most is not None:
            row.kept = Kept.CUT if any(not part.startswith(WIRE) for part in self._cut) else Kept.CONTENT
        if self._cut:
            at = self._events[-1].at if self._events else 0.0
            self._events.append(RunEvent(at, "content_cut", facts={"parts": list(self._cut)}))
        return Recording(row, self._events, self.content)

    # -- one kind of event each: its name, its turn, and what is recorded of it

    @handles(_READERS, TurnStarted)
    def _turn_started(self, event: TurnStarted, choice: int) -> tuple[str, int, Mapping[str, Any]]:
        return "turn_started", event.index, {}

    @handles(_READERS, TurnEnded)
    def _turn_ended(self, event: TurnEnded, choice: int) -> tuple[str, int, Mapping[str, Any]]:
        answer, row, turn = event.answer, self._row, event.turn
        by, usage = answer.by, answer.usage
        row.turns += 1
        self._count_attempts(choice, turn, answer.attempts)
        row.deployment = by.deployment
        if row.first_seconds is None:
            row.first_seconds = max(self._at - answer.seconds, 0.0) + answer.first_seconds
        findings = list(map(str, answer.findings)) if answer.findings else []
        if findings:
            self._findings |= dict.fromkeys(findings)
        facts: dict[str, Any] = {
            "seconds": answer.seconds,
            "finish_reasons": answer.reasons,
            "findings": findings,
            "calls": self._calls(answer, choice),
            "usage": None,
            "lane": answer.lane,
            "attempts": answer.attempts,
            "first_seconds": answer.first_seconds,
            "model": by.model,
            "deployment": by.deployment,
            "host": by.host,
        }
        if (head := answer.head) is not None:
            facts["response_id"], facts["response_model"] = head.id, head.model
        if usage:
            facts["usage"] = counts = _counts(usage)
            if (nano := self._spend(counts, by)) is not None:
                facts["cost"] = nano / NANO
        if not answer.reason_is_raw:
            facts["finish_reason_rewritten"] = True
        return "turn_ended", turn, facts

    def _calls(self, answer: TurnAccount, choice: int) -> list[dict[str, Any]]:
        row = self._row
        calls = [self._call(call, "server", choice) for call in answer.run] if answer.run else []
        if answer.handed_back or answer.broken:
            calls += [self._call(call, "client", choice) for call in answer.handed_back]
            calls += [self._call(call, None, choice) for call in answer.broken]
            row.broken_calls += len(answer.broken)
        if calls:
            row.calls += len(answer.run) + len(answer.handed_back)
            self._tools |= dict.fromkeys(call["name"][:NAME_CHARACTERS] for call in calls if call["name"])
        return calls

    def _call(self, call: Call, owner: str | None, choice: int) -> dict[str, Any]:
        facts: dict[str, Any] = {"id": call.id, "name": call.name, "owner": owner}
        if isinstance(call, BrokenCall):
            facts["name"] = call.name and call.name[:NAME_CHARACTERS]  # what a model made up may be a whole text
            facts |= {"verdict": "broken", "flaw": str(call.flaw)}
            if call.problem is not None:
                # What was wrong. Without texts only what was expected: all else repeats what the model wrote, or names it.
                if self._most is None:
                    facts["problem"] = (
                        {"rule": call.problem.rule} if call.problem.rule else {"expected": call.problem.expected}
                    )
                else:
                    said = msgspec.structs.asdict(call.problem) | {"rule": ""}
                    facts["problem"] = {name: self._mask(text) for name, text in said.items() if text}
        elif isinstance(call, ReadyCall):
            facts["verdict"] = "ready"
            if call.findings:
                facts["repairs"] = [str(finding) for finding in call.findings]
        if self._most is not None:
            self.say(part_of(choice, f"call.{call.id}.arguments"), call.text)
            if facts.get("repairs") and isinstance(call, ReadyCall):
                self.say(part_of(choice, f"call.{call.id}.read"), msgspec.json.encode(call.arguments).decode())
        return facts

    @handles(_READERS, CallStarted)
    def _call_started(self, event: CallStarted, choice: int) -> tuple[str, int, Mapping[str, Any]]:
        return "call_started", event.turn, {"id": event.call.id, "name": event.call.name, "writes": event.writes}

    @handles(_READERS, CallProgress)
    def _call_progress(self, event: CallProgress, choice: int) -> tuple[str, int, Mapping[str, Any]]:
        facts: dict[str, Any] = {"id": event.call.id, "fraction": event.fraction}
        if event.message.startswith(APPROVAL_WANTED):
            facts["approval"] = event.message.removeprefix(APPROVAL_WANTED)
        elif event.message == APPROVAL_GIVEN:
            facts["approved"] = True
        elif self._most is not None:  # what a tool says is content
            facts["message"] = self._mask(event.message[:MASKED_BEYOND])[:PREVIEW_CHARACTERS]
        return "call_progress", event.turn, facts

    @handles(_READERS, CallEnded)
    def _call_ended(self, event: CallEnded, choice: int) -> tuple[str, int, Mapping[str, Any]]:
        outcome = event.outcome
        facts: dict[str, Any] = {
            "id": event.call.id,
            "name": event.call.name,
            "seconds": event.seconds,
            "outcome": str(outcome.kind) if isinstance(outcome, Failed) else "returned",
            "bytes": len(outcome.text.encode(errors="replace")),
        }
        if isinstance(outcome, Returned) and outcome.cut_bytes:
            facts["cut_bytes"] = outcome.cut_bytes
        if isinstance(outcome, Failed):
            self._row.failed_calls += 1
        if self._most is not None:
            self.say(part_of(choice, f"call.{event.call.id}.result"), outcome.text)
        return "call_ended", event.turn, facts

    @handles(_READERS, Attempt)
    def _attempt(self, event: Attempt, choice: int) -> tuple[str, int, Mapping[str, Any]]:
        self._count_attempts(choice, event.turn, event.number)
        facts: dict[str, Any] = {
            "number": event.number,
            "model": event.by.model,
            "deployment": event.by.deployment,
            "host": event.by.host,
            "seconds": event.seconds,
            "status": event.status,
        }
        if event.wait:
            facts["wait"] = event.wait
        if event.reason:
            facts |= {"reason": event.reason, "detail": self._mask(event.detail)}
        if event.anyway:
            facts["anyway"] = True
        return "attempt", event.turn, facts

    def _spend(self, counts: Mapping[str, Any], by: Responder) -> int | None:
        """Add to what the run used. Returns what the turn cost, in nanodollars, if there is a price."""
        row, cached = self._row, 0
        prompt, completion = counted(counts, "prompt_tokens"), counted(counts, "completion_tokens")
        row.tokens_in += prompt
        row.tokens_out += completion
        if details := counts.get("prompt_tokens_details"):
            row.tokens_cached += (cached := counted(details, "cached_tokens"))
        if details := counts.get("completion_tokens_details"):
            row.tokens_reasoning += counted(details, "reasoning_tokens")
        price = self._price(by)
        if price is None:
            self._nano = row.cost = None
            return None
        nano = price.of(prompt, completion, cached)
        if self._nano is not None:
            self._nano += nano
            row.cost = self._nano / NANO
        return nano

    def _count_attempts(self, choice: int, turn: int, number: int) -> None:
        before = self._attempts.get((choice, turn), 0)
        if number > before:
            self._attempts[choice, turn] = number
            self._row.attempts += number - before

    @handles(_READERS, CallsHandedBack)
    def _handed_back(self, event: CallsHandedBack, choice: int) -> tuple[str, None, Mapping[str, Any]]:
        return "calls_handed_back", None, {"calls": [{"id": call.id, "name": call.name} for call in event.calls]}

    @handles(_READERS, ChatEnded)
    def _chat_ended(self, event: ChatEnded, choice: int) -> tuple[str, None, Mapping[str, Any]]:
        ending, row = event.ending, self._row
        row.state, row.finish_reason = str(ending.kind), ending.finish_reason
        return "ended", None, {"ending": str(ending.kind), "finish_reason": ending.finish_reason, "note": ending.note}

    @handles(_READERS, ChatFailed)
    def _chat_failed(self, event: ChatFailed, choice: int) -> tuple[str, None, Mapping[str, Any]]:
        return "failed", None, {"reason": event.reason}


def _counts(usage: Mapping[str, Any], depth: int = 1) -> dict[str, Any]:
    """What a provider counted: numbers, and those of its parts. What else it says of a turn may be of any size."""
    found: dict[str, Any] = {}
    if len(usage) > USAGE_NAMES:
        usage = dict(islice(usage.items(), USAGE_NAMES))
    for name, value in usage.items():
        kind = type(value)
        if kind is int:
            found[name] = value if 0 <= value <= MOST_TOKENS else max(min(value, MOST_TOKENS), -MOST_TOKENS)
        elif kind is float or kind is bool:
            found[name] = value
        elif depth and isinstance(value, Mapping):
            found[name] = _counts(value, depth - 1)
    if len("".join(found)) > NAME_CHARACTERS * USAGE_NAMES:
        return {name[:NAME_CHARACTERS]: value for name, value in found.items()}
    return found


def part_of(choice: int, part: str) -> str:
    """The name of a text: the choice is said only where there are several."""
    return f"choice.{choice}.{part}" if choice else part


def recorded(
    row: RunRow,
    seen: Sequence[Seen],
    said: Mapping[str, str],
    mask: Mask,
    most: int | None,
    price: PriceOf = no_price,
) -> Recording:
    """The recording of a run: its row as far as the request knows it, its events, and texts beside those of the events."""
    reader = RunReader(row, mask, most, price)
    for part, text in said.items():
        reader.say(part, text)
    reader.feed(seen)
    return reader.finish()
