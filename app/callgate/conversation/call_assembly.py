"""Assembles the tool calls of one answer from their fragments.

Providers omit, repeat and change the index, id and name that distinguish calls; rules I1 to I12 of `tests/corpus/README.md`
define how fragments are assigned. `callgate.calls.gate` checks whether an assembled call is whole.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.calls.arguments import ArgumentsError, Fragments, read_arguments
from callgate.calls.gate import FoundCall
from callgate.calls.json_text import canonical, same_json, sound_text
from callgate.calls.names import resolve_name
from callgate.calls.offer import Offer
from callgate.calls.states import Finding, Flaw
from callgate.conversation.errors import AnswerTooLarge
from callgate.conversation.events import CallDelta, CallWritten

MAX_NUMERIC_ID = 10**30
"""Larger numbers are not taken for ids: turning one into text may take very long."""


NO_ARGUMENTS = "{}"
"""The spelling of arguments that are absent, or an object without any."""
MAX_CALLS = 2000
"""Calls of one answer. Each gets an answer in the history, however few of them may run."""


NOT_WRITTEN = CallWritten(None, at_once=False)
"""For a call that came in fragments."""


class CallAssembler(msgspec.Struct, eq=False, kw_only=True):
    """Collects the calls of one answer. Each fragment costs the same however many came before; arguments are read at the end."""

    offer: Offer
    ids: Callable[[], str]
    noticed: dict[Finding, None]
    """The findings of the answer, each once; those of the assembly are added."""
    argument_bytes: int | None = None
    """The size beyond which a call's arguments are dropped and the call is broken."""
    read_from_text: bool = False
    """A call was written in the model's text."""
    text_is_damaged: bool = False
    """Some of the text could not be read and stands in it as U+FFFD."""

    _calls: "list[_OpenCall]" = []
    _by_index: "dict[int, _OpenCall]" = {}
    _by_id: "dict[str, _OpenCall]" = {}
    _by_both: "dict[tuple[str, int], _OpenCall]" = {}
    _written: dict[str, tuple[str | None, Fragments] | set[tuple[str | None, str]]] = {}
    """The first call of each id, or what distinguishes those that have the same id."""
    _are_related: bool = False
    """A call may be another one sent again, or a piece of it."""
    _opened_nameless: bool = False
    """A call began without its name."""
    _legacy: Fragments | None = None
    _legacy_names: list[str] = []
    _legacy_reasons_before: int = 0
    _taken: set[str] = set()
    _reasons: int = 0
    """How many finish reasons have come."""
    _last_orderly: int = 0
    """Which of them was the last that said that the turn ended in order."""
    ends_in_repetition: bool = False
    """The last call in one piece was one that had come before, so that none of the others was being written at the end."""

    def note_reason(self, *, orderly: bool) -> None:
        """Note that a finish reason came, and whether it says that the turn ended in order."""
        self._reasons += 1
        if orderly:
            self._last_orderly = self._reasons

    # -- fragments

    def add(self, delta: CallDelta) -> None:
        arguments = delta.arguments
        if delta.id is None and delta.name is None and not delta.extras and not delta.legacy:
            # Nearly all fragments: a piece of arguments for a call that was opened before.
            if arguments is None or arguments == "":
                return
            call = self._candidate(None, delta.index) or self._open(delta, _ProviderId())
            call.arguments.add(arguments)
            call.reasons_before = self._reasons
            call.at_once |= delta.at_once
            if call.is_followed:
                call.resumed = True
        elif delta.legacy:
            self._legacy_piece(delta.name, arguments)
        else:
            self._fragment(delta, _provider_id(delta.id), None if arguments == "" else arguments)

    def _fragment(self, delta: CallDelta, provider_id: "_ProviderId", arguments: Any) -> None:
        if provider_id.id is None and not delta.name and arguments is None and not delta.extras:
            return
        candidate = self._candidate(provider_id.id, delta.index)
        if candidate is None:
            kind = _Fragment.OPENS
        else:
            kind = self._classify(candidate, delta, provider_id, arguments)
        if candidate is None or kind is _Fragment.OPENS:
            if delta.index is None:
                at_index = None
            else:
                at_index = self._by_index.get(delta.index)
            call = self._open(delta, provider_id)
            if candidate is not None:
                self._relate(call, candidate, both_indexes=delta.index is not None and candidate.index is not None)
                if at_index is not None and at_index is not candidate:
                    self._relate(call, at_index, both_indexes=True)
        else:
            call = candidate
            self._identify(call, provider_id)
        call.reasons_before = self._reasons
        if arguments is not None and kind is not _Fragment.RESENT:
            call.arguments.add(arguments)
            call.resumed |= call.is_followed
            call.at_once |= delta.at_once
        if delta.extras:
            call.extras = _merged(call.extras, delta.extras)

    def _candidate(self, id_: str | None, index: int | None) -> "_OpenCall | None":
        """Return the latest call that this fragment could continue."""
        if id_ is not None:
            if index is not None and (call := self._by_both.get((id_, index))) is not None:
                return call
            if (call := self._by_id.get(id_)) is not None:
                return call
        if index is not None:
            return self._by_index.get(index)
        if self._calls:
            return self._calls[-1]
        return None

    def _open(self, delta: CallDelta, provider_id: "_ProviderId") -> "_OpenCall":
        call = self._new_call(name=delta.name or None, index=delta.index, custom=delta.custom)
        self._calls.append(call)
        self._opened_nameless |= call.name is None
        if call.index is not None:
            self._by_index[call.index] = call
        self._identify(call, provider_id)
        return call

    def _relate(self, call: "_OpenCall", before: "_OpenCall", *, both_indexes: bool) -> None:
        """Note how a call may be related to its candidate: the same call sent again, or the next piece of a call with an id
        or name that changes with every piece."""
        call.may_be_resent |= call.id is not None and call.id == before.id
        name = call.name or ""
        name_before = before.name or ""
        self._are_related |= call.may_be_resent
        if both_indexes and call.index != before.index:
            return
        if name.startswith(name_before) or any(tool.startswith(name_before + name) for tool in self.offer):
            call.previous_piece = before
            before.is_followed = True
            self._are_related = True
            # A piece after one that may lie within another call may lie within that call as well.
            call.opened_inside = before.opened_inside or _state_of(before) is _Written.PART

    def _identify(self, call: "_OpenCall", provider_id: "_ProviderId") -> None:
        """Give the call the first id that comes for it; a different one later makes its id doubtful."""
        if provider_id.id is None:
            return
        if call.id is None:
            call.id = provider_id.id
            call.id_usable = provider_id.usable
            self._by_id[provider_id.id] = call
            if call.index is not None:
                self._by_both[provider_id.id, call.index] = call
        elif call.id != provider_id.id:
            call.id_usable = False

    def _classify(
        self, candidate: "_OpenCall", delta: CallDelta, provider_id: "_ProviderId", arguments: Any
    ) -> "_Fragment":
        """Classify a fragment in relation to its candidate. Only a fragment with a name can be anything but a continuation."""
        name = delta.name
        if not name:
            return _Fragment.CONTINUES
        both_ids = provider_id.id is not None and candidate.id is not None
        if both_ids and provider_id.id != candidate.id:
            return _Fragment.OPENS
        if candidate.name is None:
            candidate.name = name
            candidate.named_late = bool(candidate.arguments)
            return _Fragment.CONTINUES
        both_indexes = delta.index is not None and candidate.index is not None
        if both_indexes and delta.index != candidate.index:  # it was found by its id
            return _Fragment.OPENS
        if name == candidate.name:
            if arguments is None or (isinstance(arguments, str) and arguments.isspace()):
                return _Fragment.CONTINUES
            so_far = candidate.arguments.object_so_far()
            if so_far is None:
                return _Fragment.CONTINUES
            if _same_object(so_far.value, arguments):
                self.noticed[Finding.DUPLICATE_CALL_DROPPED] = None
                return _Fragment.RESENT
            is_written_now = not so_far.value and both_indexes and provider_id.id is None
            return _Fragment.CONTINUES if both_ids or is_written_now else _Fragment.OPENS
        # A name may come in pieces, or as snapshots that grow, as long as no arguments have come.
        before = candidate.name or ""
        if candidate.arguments or (before in self.offer and name in self.offer):
            return _Fragment.OPENS
        if name.startswith(before):
            candidate.name = name
        elif any(tool.startswith(before + name) for tool in self.offer):
            candidate.name = before + name
        else:
            return _Fragment.OPENS
        return _Fragment.CONTINUES

    def _new_call(self, **fields: Any) -> "_OpenCall":
        if len(self._calls) >= MAX_CALLS:
            raise AnswerTooLarge(f"{MAX_CALLS} calls")
        return _OpenCall(arguments=Fragments(limit=self.argument_bytes), **fields)

    # -- calls in one piece

    def add_written(self, written: CallWritten) -> None:
        if written.legacy:
            self._legacy_piece(written.name, written.arguments)
            return
        provider_id = _provider_id(written.id)
        call = self._new_call(
            name=written.name or None,
            id=provider_id.id,
            id_usable=provider_id.usable,
            extras=written.extras,
            custom=written.custom,
        )
        call.arguments.add(written.arguments)
        call.reasons_before = self._reasons
        if call.arguments.too_large:
            call.written = replace(written, arguments=None)
        else:
            call.written = written
        if written.from_text:
            self.read_from_text = True
        elif provider_id.id is not None and self._was_written(provider_id.id, written.name, call.arguments):
            self.noticed[Finding.DUPLICATE_CALL_DROPPED] = None
            self.ends_in_repetition = True
            return
        self.ends_in_repetition = False
        self._calls.append(call)

    def _was_written(self, id_: str, name: str | None, arguments: Fragments) -> bool:
        """True if the same call was added before. Arguments are only compared where an id comes a second time."""
        before = self._written.get(id_)
        if before is None:
            self._written[id_] = (name, arguments)
            return False
        if isinstance(before, tuple):
            before = self._written[id_] = {(self._tool_name(before[0]), _spelling_of(before[1]))}
        mine = (self._tool_name(name), _spelling_of(arguments))
        was_written = mine in before
        before.add(mine)
        return was_written

    def _legacy_piece(self, name: str | None, arguments: Any) -> None:
        if not name and (arguments is None or arguments == ""):
            return
        if self._legacy is None:
            self._legacy = Fragments(limit=self.argument_bytes)
        if name:
            self._legacy_names.append(name)
        self._legacy.add(arguments)
        self._legacy_reasons_before = self._reasons

    # -- the calls that were found

    def size(self) -> int:
        """Bytes of the arguments that came."""
        size = self._legacy.size if self._legacy is not None else 0
        for call in self._calls:
            size += call.arguments.size
        return size

    def collected(self, *, in_order: bool) -> list[FoundCall]:
        """Return the calls that came. `in_order`: the body of the answer ended with its end mark."""
        if not self._calls and self._legacy is not None:
            name = "".join(self._legacy_names) or None
            legacy = _OpenCall(name, arguments=self._legacy, reasons_before=self._legacy_reasons_before)
            return [replace(self._found_call(legacy, in_order), findings=(Finding.LEGACY_FUNCTION_CALL,))]
        calls = self._calls
        if self._opened_nameless:
            self._doubt_where_arguments_are_misplaced()
        if self._are_related:
            self._doubt_pieces_of_others()
            calls = self._without_resent()
        if self.read_from_text and (
            native := [call for call in calls if not (call.written and call.written.from_text)]
        ):
            # A server that parses its model's text itself sends both, and no call may run twice.
            self.noticed[Finding.DUPLICATE_CALL_DROPPED] = None
            calls = native
        return [self._found_call(call, in_order) for call in calls]

    def _without_resent(self) -> list["_OpenCall"]:
        """Return the calls without repetitions of the same id, name and arguments. One that was sent without arguments, and
        with them at another index, is the call with them, in the place of the first."""
        calls: list[_OpenCall] = []
        spellings: dict[tuple[str | None, str | None], dict[str, _OpenCall]] = {}
        for call in self._calls:
            same_call = spellings.setdefault((call.id, self._tool_name(call.name)), {})
            spelling = _spelling_of(call.arguments)
            if call.may_be_resent and (spelling in same_call or (same_call and spelling == NO_ARGUMENTS)):
                self.noticed[Finding.DUPLICATE_CALL_DROPPED] = None
            elif call.may_be_resent and NO_ARGUMENTS in same_call:
                self.noticed[Finding.DUPLICATE_CALL_DROPPED] = None
                same_call[spelling] = same_call.pop(NO_ARGUMENTS)
                same_call[spelling].take_over(call)
            else:
                same_call[spelling] = call
                calls.append(call)
        return calls

    def _tool_name(self, name: str | None) -> str | None:
        """Return the name of the offered tool that a call means; its own name if it means none."""
        tool = resolve_name(name, self.offer) if name else None
        if tool is None:
            return name
        return tool.name

    def _doubt_where_arguments_are_misplaced(self) -> None:
        """Mark calls as doubtful where arguments came before a call's name or without any: they may belong to a call that
        has none. Arguments that begin in the middle of an object may be missing from any call."""
        blank = [call for call in self._calls if call.name and _state_of(call) is _Written.NOTHING]
        stray = [call for call in self._calls if call.named_late or not call.name]
        if not any(_state_of(call) is not _Written.NOTHING for call in stray):
            return
        for call in blank:
            tool = self.offer.get(self._tool_name(call.name) or "")
            call.doubtful |= tool is None or bool(tool.parameters.get("properties"))
        is_from_middle = any(not call.name and _begins_inside(call) for call in stray)
        for call in self._calls if is_from_middle else stray:
            call.doubtful |= (is_from_middle or bool(blank)) and call.name is not None

    def _doubt_pieces_of_others(self) -> None:
        """Mark calls as doubtful where one may be a piece of another: what parses as an object may be only a part of one."""
        states = {id(call): _state_of(call) for call in self._calls}
        chains: dict[int, list[_OpenCall]] = {}
        for call in self._calls:
            before = call.previous_piece
            chain = [] if before is None else chains[id(before)]
            chain.append(call)
            chains[id(call)] = chain
            if before is not None and call.opened_inside:
                call.doubtful = before.doubtful = True
        for chain in {id(chain): chain for chain in chains.values()}.values():
            of_chain = [states[id(call)] for call in chain]
            for call in chain[: None if _Written.WHOLE in of_chain or _Written.PART in of_chain else -1]:
                is_blank = states[id(call)] is _Written.NOTHING
                call.doubtful |= is_blank or (call.resumed and _Written.PART in of_chain)

    def _found_call(self, call: "_OpenCall", in_order: bool) -> FoundCall:
        written = call.written or NOT_WRITTEN
        from_text = written.from_text
        # The id this call has in the history, and whether that took a repair.
        if call.id is None or call.id in self._taken:
            id_ = self.new_id()
            is_repaired = call.id is not None or not from_text  # most text formats have no ids
        else:
            self._taken.add(call.id)
            id_ = call.id
            is_repaired = not call.id_usable
        return FoundCall(
            id_,
            call.name,
            written.arguments if from_text and isinstance(written.arguments, dict) else call.arguments,
            (Finding.ID_REPAIRED,) if is_repaired else (),
            flaw=self._flaw_of(call),
            repaired=written.repaired,
            only_text=written.only_text,
            undeclared_json=written.undeclared_json,
            from_text=from_text,
            is_alone=written.is_alone,
            in_order=in_order,
            ended=from_text or (in_order and self._last_orderly > call.reasons_before),
            reason_came_before=call.reasons_before > 0,
            at_once=call.at_once or (written.at_once and not from_text),
            extras=call.extras,
            custom=call.custom,
        )

    def _flaw_of(self, call: "_OpenCall") -> Flaw | None:
        """Return a flaw that the kept arguments cannot show: of too large ones only the beginning is left."""
        if call.arguments.too_large:
            return Flaw.ARGUMENTS_TOO_LARGE
        written = call.written
        if written is None:
            if call.doubtful and _state_of(call) is not _Written.PART:
                return Flaw.TRUNCATED
            return None
        if self.text_is_damaged and written.from_text and "\ufffd" in f"{call.name}{call.arguments.text()}":
            return written.flaw or Flaw.INVALID_JSON
        return written.flaw

    def new_id(self) -> str:
        id_ = self.ids()
        while id_ in self._taken or id_ in self._by_id:
            id_ = self.ids()
        self._taken.add(id_)
        return id_


class _Fragment(Enum):
    """The treatment of a fragment that has a candidate."""

    CONTINUES = auto()
    OPENS = auto()
    RESENT = auto()


class _Written(Enum):
    """The state of a call's arguments: none, some or a whole object."""

    NOTHING = auto()
    PART = auto()
    WHOLE = auto()


def _state_of(call: "_OpenCall") -> _Written:
    try:
        if call.arguments.read().absent:
            return _Written.NOTHING
        return _Written.WHOLE
    except ArgumentsError:
        return _Written.PART


def _begins_inside(call: "_OpenCall") -> bool:
    """True if a call's arguments are neither an object nor the beginning of one."""
    try:
        call.arguments.read()
    except ArgumentsError as error:
        return error.flaw is not Flaw.TRUNCATED or not call.arguments.text().lstrip().startswith("{")
    return False


class _ProviderId(msgspec.Struct, frozen=True, gc=False):
    """An id as a provider sent it. A number is kept as text, to distinguish calls, but is not used as an id in answers."""

    id: str | None = None
    usable: bool = False


def _provider_id(raw: object) -> _ProviderId:
    if isinstance(raw, str):
        sound = sound_text(raw)
        if raw and not raw.isspace():
            return _ProviderId(sound, usable=sound == raw)
        return _ProviderId()
    if isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) < MAX_NUMERIC_ID:
        return _ProviderId(str(raw))
    return _ProviderId()


class _OpenCall(msgspec.Struct, eq=False):
    """A call while its fragments come."""

    name: str | None = None
    index: int | None = None
    id: str | None = None
    id_usable: bool = False
    arguments: Fragments = msgspec.field(default_factory=Fragments)
    extras: Mapping[str, Any] = {}
    written: CallWritten | None = None
    """Set where it came in one piece."""
    custom: bool = False
    reasons_before: int = 0
    """How many finish reasons had come before its last fragment."""
    may_be_resent: bool = False
    """Its id came before."""
    previous_piece: "_OpenCall | None" = None
    """A call of which it may be the next piece, although its name or id differs."""
    is_followed: bool = False
    """Another call may continue this one."""
    opened_inside: bool = False
    """It was opened while the arguments of the call that it may continue were not whole."""
    resumed: bool = False
    """It got more arguments after a call that may continue it."""
    named_late: bool = False
    """Its name came after some of its arguments."""
    doubtful: bool = False
    """Its arguments may be a part of other arguments."""
    at_once: bool = False
    """Its arguments came as an object."""

    def take_over(self, fuller: "_OpenCall") -> None:
        """Take over what the same call brought when it was sent again with its arguments."""
        self.arguments = fuller.arguments
        self.reasons_before = fuller.reasons_before
        self.doubtful = fuller.doubtful
        self.resumed = fuller.resumed
        self.at_once = fuller.at_once
        self.id_usable &= fuller.id_usable
        self.extras = _merged(self.extras, fuller.extras)


def _spelling_of(arguments: Fragments) -> str:
    """Return the object in canonical JSON, or the text if it is not an object."""
    try:
        return canonical(arguments.read().value)
    except ArgumentsError:
        return arguments.text()


def _same_object(value: dict[str, Any], arguments: Any) -> bool:
    try:
        return same_json(value, read_arguments([arguments]).value)
    except ArgumentsError:
        return False


def _merged(before: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the extras of several fragments of a call; a later value wins, inside objects as well."""
    merged = dict(before)
    for key, value in later.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
