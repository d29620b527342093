"""One model answer. A `TurnBuilder` folds its events while they come; `finish` settles its calls and gives the `Turn`.

Which fragment belongs to which call is decided here, by rules I1 to I10 of `tests/corpus/README.md`: providers leave
out, repeat, renumber and rename what tells calls apart. Whether a call is whole is `app.calls.gate`'s business.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from app.calls.arguments import ArgumentsError, Fragments, encode_arguments, read_arguments
from app.calls.gate import FoundCall, settle
from app.calls.json_text import canonical, same_json, sound_text
from app.calls.offer import Offer
from app.calls.states import BrokenCall, Call, Finding, Flaw, ReadyCall
from app.chat.events import (
    Aside,
    CallDelta,
    CallWritten,
    ChoiceIgnored,
    Finished,
    Head,
    Logprobs,
    ModelEvent,
    ProviderError,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ThinkingBlock,
    Usage,
)
from app.chat.finish import FinishClass, finish_findings, judge_finish

MAX_NAME = 64
"""What providers allow for a function name in the history."""
MAX_NUMERIC_ID = 10**30
"""A number beyond this is no id anybody counts with, and turning it into text may take for ever."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A finished model answer; each of its calls is settled."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()
    """The finish reasons as the provider wrote them."""
    winner: FinishClass | None = None
    """What they mean together; None if there were none."""
    failure: Flaw | None = None
    """Why nothing of this turn may run, if so."""
    usage: Mapping[str, Any] | None = None
    head: Head | None = None
    logprobs: tuple[Mapping[str, Any], ...] = ()
    asides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the message that nobody here reads, joined over the stream; `thinking_blocks` among them."""
    error: ProviderError | None = None

    def assistant_message(self) -> dict[str, Any]:
        """The message as it goes back to the model: well formed whatever came, with all that was part of it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or (None if self.calls else "")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        message |= {name: _echo(name, value) for name, value in self.asides.items() if name not in message}
        if self.calls:
            message["tool_calls"] = [_call_in_history(call) for call in self.calls]
        return message


class TurnBuilder:
    """Folds the events of one answer. Feeding costs the same however much has come; nothing is joined or parsed
    before the end."""

    def __init__(self, offer: Offer, ids: Callable[[], str], *, text_calls: bool = False) -> None:
        """`text_calls`: calls are written in this model's text, so that its finish reason says nothing about them.
        It is assumed as soon as one such call comes."""
        self._offer = offer
        self._ids = ids
        self._text_calls = text_calls
        self._texts: list[str] = []
        self._reasoning: dict[str, list[str]] = {}
        self._calls: list[_Gathering] = []
        self._by_index: dict[int, _Gathering] = {}
        self._by_id: dict[str, _Gathering] = {}
        self._by_both: dict[tuple[str, int], _Gathering] = {}
        self._written: set[tuple[str, str | None, str]] = set()
        self._legacy: Fragments | None = None
        self._legacy_names: list[str] = []
        self._taken: set[str] = set()
        self._reasons: list[str] = []
        self._noticed: list[Finding] = []
        self._usage: Mapping[str, Any] | None = None
        self._head: Head | None = None
        self._error: ProviderError | None = None
        self._logprobs: list[Mapping[str, Any]] = []
        self._asides: dict[str, list[Any]] = {}
        self._thinking = _Thinking()
        self._take: dict[type, Callable[[Any], None]] = {
            TextDelta: self._text,
            CallDelta: self._call_delta,
            ReasoningDelta: self._reason,
            CallWritten: self._call_written,
            Finished: self._finished,
            Usage: self._used,
            Head: self._headed,
            Logprobs: self._logged,
            Aside: self._aside,
            ThinkingBlock: self._thought,
            ProviderError: self._failed,
            ChoiceIgnored: self._ignored,
        }

    def feed(self, events: Iterable[ModelEvent]) -> None:
        take = self._take
        for event in events:
            take[type(event)](event)

    def finish(self, end: StreamEnd = StreamEnd.DONE) -> Turn:
        """The turn, its calls settled. `end` is how the body of the answer ended."""
        finish = judge_finish(self._reasons, end, error=self._error is not None)
        calls = settle(
            self._found(),
            self._offer,
            failure=finish.failure,
            at_length=finish.winner is FinishClass.LENGTH,
            new_id=self._new_id,
        )
        findings = finish_findings(finish, calls_found=bool(calls), from_text=self._text_calls)
        findings += self._noticed
        findings += [finding for call in calls if isinstance(call, ReadyCall) for finding in call.findings]
        return Turn(
            text=sound_text("".join(self._texts)),
            reasoning=self._all_reasoning(),
            calls=calls,
            findings=tuple(dict.fromkeys(findings)),
            reasons=finish.reasons,
            winner=finish.winner,
            failure=finish.failure,
            usage=self._usage,
            head=self._head,
            logprobs=tuple(self._logprobs),
            asides=self._all_asides(),
            error=self._error,
        )

    # -- what is not a call

    def _text(self, event: TextDelta) -> None:
        self._texts.append(event.text)

    def _reason(self, event: ReasoningDelta) -> None:
        self._reasoning.setdefault(event.source, []).append(event.text)

    def _all_reasoning(self) -> str:
        """One copy: some providers send the same reasoning under two names. What the model wrote among its text is
        not such a copy."""
        told = {source: "".join(pieces) for source, pieces in self._reasoning.items()}
        native = next((told[name] for name in ("reasoning_content", "reasoning", "thinking") if told.get(name)), "")
        return sound_text(native + told.get("text", ""))

    def _finished(self, event: Finished) -> None:
        if event.reason and event.reason not in self._reasons:
            self._reasons.append(event.reason)

    def _used(self, event: Usage) -> None:
        self._usage = event.counts

    def _headed(self, event: Head) -> None:
        self._head = self._head or event

    def _logged(self, event: Logprobs) -> None:
        self._logprobs.append(event.value)

    def _failed(self, event: ProviderError) -> None:
        self._error = self._error or event

    def _ignored(self, event: ChoiceIgnored) -> None:
        self._notice(Finding.EXTRA_CHOICES_IGNORED)

    def _thought(self, event: ThinkingBlock) -> None:
        self._thinking.add(event.block)

    def _aside(self, event: Aside) -> None:
        self._asides.setdefault(event.field, []).append(event.value)

    def _all_asides(self) -> dict[str, Any]:
        asides = {name: _folded(values) for name, values in self._asides.items()}
        blocks = self._thinking.blocks()
        return asides | {"thinking_blocks": blocks} if blocks else asides

    # -- fragments of calls

    def _call_delta(self, delta: CallDelta) -> None:
        arguments = delta.arguments
        if delta.id is None and delta.name is None and not delta.extras and not delta.legacy:
            # Nearly all fragments: a piece of arguments for a call that was opened before.
            if arguments is None or arguments == "":
                return
            call = self._candidate(None, delta.index) or self._open(delta, _Given())
            call.arguments.add(arguments)
        elif delta.legacy:
            self._legacy_piece(delta.name, arguments)
        else:
            self._fragment(delta, _given(delta.id), None if arguments == "" else arguments)

    def _fragment(self, delta: CallDelta, given: "_Given", arguments: Any) -> None:
        if given.id is None and not delta.name and arguments is None and not delta.extras:
            return
        candidate = self._candidate(given.id, delta.index)
        fate = _Fate.OPENS if candidate is None else self._fate(candidate, delta, given, arguments)
        if candidate is None or fate is _Fate.OPENS:
            call = self._open(delta, given)
        else:
            call = candidate
            self._identify(call, given)
        if arguments is not None and fate is not _Fate.RESENT:
            call.arguments.add(arguments)
        if delta.extras:
            call.extras = _merged(call.extras, delta.extras)

    def _candidate(self, id_: str | None, index: int | None) -> "_Gathering | None":
        """The latest call that this fragment could continue."""
        if id_ is not None:
            if index is not None and (call := self._by_both.get((id_, index))) is not None:
                return call
            if (call := self._by_id.get(id_)) is not None:
                return call
        if index is not None:
            return self._by_index.get(index)
        return self._calls[-1] if self._calls else None

    def _open(self, delta: CallDelta, given: "_Given") -> "_Gathering":
        call = _Gathering(name=delta.name or None, index=delta.index)
        self._calls.append(call)
        if call.index is not None:
            self._by_index[call.index] = call
        self._identify(call, given)
        return call

    def _identify(self, call: "_Gathering", given: "_Given") -> None:
        """A call takes the first id that comes for it; any other after that makes its id doubtful."""
        if given.id is None:
            return
        if call.id is None:
            call.id, call.id_usable = given.id, given.usable
            self._by_id[given.id] = call
            if call.index is not None:
                self._by_both[given.id, call.index] = call
        elif call.id != given.id:
            call.id_usable = False

    def _fate(self, candidate: "_Gathering", delta: CallDelta, given: "_Given", arguments: Any) -> "_Fate":
        """What a fragment is to its candidate. Only one that has a name can be something else than a continuation."""
        name = delta.name
        if not name:
            return _Fate.CONTINUES
        both_ids = given.id is not None and candidate.id is not None
        if both_ids and given.id != candidate.id:
            return _Fate.OPENS
        if candidate.name is None:
            candidate.name = name
            return _Fate.CONTINUES
        both_indexes = delta.index is not None and candidate.index is not None
        if both_ids and both_indexes and delta.index != candidate.index:
            return _Fate.OPENS
        if name == candidate.name:
            return self._named_again(candidate, arguments, same_id=both_ids)
        return self._renamed(candidate, name)

    def _named_again(self, candidate: "_Gathering", arguments: Any, *, same_id: bool) -> "_Fate":
        if arguments is None or (isinstance(arguments, str) and arguments.isspace()):
            return _Fate.CONTINUES
        so_far = candidate.arguments.object_so_far()
        if so_far is None:
            return _Fate.CONTINUES
        if _same_object(so_far.value, arguments):
            self._notice(Finding.DUPLICATE_CALL_DROPPED)
            return _Fate.RESENT
        return _Fate.CONTINUES if same_id else _Fate.OPENS

    def _renamed(self, candidate: "_Gathering", name: str) -> "_Fate":
        """A name may come in pieces, or as snapshots that grow, as long as no arguments have come."""
        before = candidate.name or ""
        if candidate.arguments or (before in self._offer and name in self._offer):
            return _Fate.OPENS
        if name.startswith(before):
            candidate.name = name
        elif any(tool.startswith(before + name) for tool in self._offer):
            candidate.name = before + name
        else:
            return _Fate.OPENS
        return _Fate.CONTINUES

    # -- calls in one piece

    def _call_written(self, call: CallWritten) -> None:
        if call.legacy:
            self._legacy_piece(call.name, call.arguments)
            return
        given = _given(call.id)
        gathering = _Gathering(name=call.name or None, id=given.id, id_usable=given.usable, extras=call.extras)
        gathering.written = call
        gathering.arguments.add(call.arguments)
        if call.from_text:
            self._text_calls = True
        elif given.id is not None and self._was_written(given.id, call.name, gathering.arguments):
            self._notice(Finding.DUPLICATE_CALL_DROPPED)
            return
        self._calls.append(gathering)

    def _was_written(self, id_: str, name: str | None, arguments: Fragments) -> bool:
        entry = (id_, name, _told_apart_by(arguments))
        was_written = entry in self._written
        self._written.add(entry)
        return was_written

    def _legacy_piece(self, name: str | None, arguments: Any) -> None:
        if not name and (arguments is None or arguments == ""):
            return
        if self._legacy is None:
            self._legacy = Fragments()
        if name:
            self._legacy_names.append(name)
        self._legacy.add(arguments)

    # -- the calls that were found

    def _found(self) -> list[FoundCall]:
        if not self._calls and self._legacy is not None:
            name = "".join(self._legacy_names) or None
            return [FoundCall(self._new_id(), name, self._legacy, (Finding.LEGACY_FUNCTION_CALL,))]
        return [self._found_call(call) for call in self._calls]

    def _found_call(self, call: "_Gathering") -> FoundCall:
        written = call.written
        from_text = written is not None and written.from_text
        id_, repaired = self._free_id(call)
        if from_text and call.id is None:
            repaired = False  # most text formats have no ids
        return FoundCall(
            id_,
            call.name,
            written.arguments if from_text and written and isinstance(written.arguments, dict) else call.arguments,
            (Finding.ID_REPAIRED,) if repaired else (),
            flaw=written.flaw if written else None,
            repaired=written is not None and written.repaired,
            only_text=written is not None and written.only_text,
            from_text=from_text,
            extras=call.extras,
        )

    def _free_id(self, call: "_Gathering") -> tuple[str, bool]:
        """The id this call has in the history, and whether that took a repair."""
        if call.id is None or call.id in self._taken:
            return self._new_id(), True
        self._taken.add(call.id)
        return call.id, not call.id_usable

    def _new_id(self) -> str:
        while (made := self._ids()) in self._taken or made in self._by_id:
            pass
        self._taken.add(made)
        return made

    def _notice(self, finding: Finding) -> None:
        if finding not in self._noticed:
            self._noticed.append(finding)


class _Fate(Enum):
    """What becomes of a fragment that has a candidate."""

    CONTINUES = auto()
    OPENS = auto()
    RESENT = auto()


@dataclass(frozen=True, slots=True)
class _Given:
    """An id as a provider gave it; a number is kept as text, to tell calls apart by, but is no id to answer with."""

    id: str | None = None
    usable: bool = False


def _given(raw: object) -> _Given:
    if isinstance(raw, str):
        sound = sound_text(raw)
        return _Given(sound, usable=sound == raw) if raw and not raw.isspace() else _Given()
    if isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) < MAX_NUMERIC_ID:
        return _Given(str(raw))
    return _Given()


@dataclass(slots=True)
class _Gathering:
    """A call while its fragments come."""

    name: str | None = None
    index: int | None = None
    id: str | None = None
    id_usable: bool = False
    arguments: Fragments = field(default_factory=Fragments)
    extras: Mapping[str, Any] = field(default_factory=dict)
    written: CallWritten | None = None
    """Where it came in one piece."""


def _told_apart_by(arguments: Fragments) -> str:
    """The object in one spelling, or the text if it makes none."""
    try:
        return canonical(arguments.read().value)
    except ArgumentsError:
        return arguments.text()


def _same_object(value: dict[str, Any], arguments: Any) -> bool:
    try:
        return same_json(value, read_arguments([arguments]).value)
    except ArgumentsError:
        return False


class _Thinking:
    """Thinking blocks in their order. Pieces of one are joined until its signature comes."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._open = False

    def add(self, block: Mapping[str, Any]) -> None:
        piece = block.get("thinking")
        if block.get("type", "thinking") != "thinking" or not isinstance(piece, str | None):
            self._close()
            self._blocks.append(dict(block))
            return
        if not self._open:
            self._blocks.append({"type": "thinking"})
            self._open = True
        self._pieces.append(piece or "")
        self._blocks[-1] |= {key: value for key, value in block.items() if value or key not in self._blocks[-1]}
        if block.get("signature"):
            self._close()

    def blocks(self) -> list[dict[str, Any]]:
        self._close()
        return self._blocks

    def _close(self) -> None:
        if self._open:
            self._blocks[-1]["thinking"] = sound_text("".join(self._pieces))
            self._pieces.clear()
            self._open = False


def _merged(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Extras of one call that came in several fragments; a later value wins, inside objects as well."""
    merged = dict(before)
    for key, value in more.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _folded(values: list[Any]) -> Any:
    """One field of a message out of its deltas: text and lists go on, objects fill up, anything else is replaced."""
    if all(isinstance(value, str) for value in values):
        return sound_text("".join(values))
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    if all(isinstance(value, dict) for value in values):
        return {key: item for value in values for key, item in value.items()}
    return values[-1]


# Going back to the model ---------------------------------------------------------------------------------------------


def _call_in_history(call: Call) -> dict[str, Any]:
    function = {"name": _name_in_history(call), "arguments": _arguments_in_history(call)}
    return {**call.extras, "id": call.id, "type": "function", "function": function}


def _name_in_history(call: Call) -> str:
    """A broken call may have any name, or none; providers refuse a history with such a name in it."""
    if isinstance(call, ReadyCall):
        return call.name
    return _ILLEGAL.sub("_", call.name or "")[:MAX_NAME] or "unnamed"


_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def _arguments_in_history(call: Call) -> str:
    """The model's own text where that is one JSON object; providers parse it, and refuse what is not."""
    if isinstance(call, BrokenCall):
        return "{}"
    as_written = Finding.ARGUMENTS_REPAIRED not in call.findings and call.text.lstrip().startswith("{")
    return call.text if as_written else encode_arguments(call.arguments)


def _echo(name: str, value: Any) -> Any:
    """Audio goes back by its id; the provider keeps the sound."""
    return {"id": value["id"]} if name == "audio" and isinstance(value, dict) and "id" in value else value
