r"""Regular expressions of operators, matched in linear time: an automaton that is built while texts are read.

An expression has literals, classes, groups, `|`, `?`, `*`, `+`, `{m,n}`, `.`, `\\d \\w \\s` and their opposites, `\\b` at its ends, and
`(?i)` in front. It has no lookaround and no references: what needs them cannot be matched in linear time, and is refused. Of several
matches at one place the longest counts, up to `width` characters.
"""

import re
from collections.abc import Callable
from typing import Final

import msgspec

MOST_STATES: Final = 4_000
MOST_REPEATS: Final = 255
MOST_REMEMBERED: Final = 20_000
"""Steps of the automaton that are remembered; then it begins anew."""
_ESCAPES: Final = {"d": r"\d", "w": r"\w", "s": r"\s", "D": r"\D", "W": r"\W", "S": r"\S"}
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r"}

TakesCharacter = Callable[[str], bool]


class BadExpression(ValueError):
    """Raised for an expression that is not taken, in words for the operator."""


class OwnMatch(msgspec.Struct, frozen=True):
    """What an expression matches."""

    at: int
    text: str

    def start(self) -> int:
        return self.at

    def group(self) -> str:
        return self.text


class _State(msgspec.Struct, eq=False):
    """A state of the automaton before it is made deterministic: it takes a character, or goes on without one."""

    takes: TakesCharacter | None = None
    next: int = -1
    free: tuple[int, ...] = ()
    """The states that are reached without a character."""


class LinearExpression:
    """One expression."""

    def __init__(self, expression: str, width: int) -> None:
        """Raises `BadExpression`. `width`: the most characters of a match, and one that is looked at behind it."""
        self._longest = width - 1
        self._bounds = (False, False)
        builder = _Builder(*self._without_ends(expression))
        self._states = builder.states
        self._final = builder.final
        start = self._closed({builder.start})
        if self._final in start:
            raise BadExpression("it matches nothing at all, and so everywhere")
        self._sets: list[frozenset[int]] = [start]
        self._places: dict[frozenset[int], int] = {start: 0}
        self._steps: dict[tuple[int, str], int] = {}
        self._start = start
        self.steps = 0
        """Characters that were read."""

    def _without_ends(self, expression: str) -> tuple[str, bool]:
        r"""Return the expression without `(?i)` and `\\b` at its ends."""
        ignores_case = expression.startswith("(?i)")
        if ignores_case:
            expression = expression[4:]
        begins = expression.startswith(r"\b")
        if begins:
            expression = expression[2:]
        ends = expression.endswith(r"\b") and not expression.endswith(r"\\b")
        if ends:
            expression = expression[:-2]
        self._bounds = (begins, ends)
        return expression, ignores_case

    def search(self, text: str, at: int, /) -> OwnMatch | None:
        """Return the first match from a place on, the longest there."""
        for start in range(at, len(text)):
            if (end := self._end_of(text, start)) > start:
                return OwnMatch(start, text[start:end])
        return None

    def _end_of(self, text: str, start: int) -> int:
        """Return the end of the longest match at a place; -1 where there is none."""
        begins, ends = self._bounds
        if begins and not _is_bound(text, start):
            return -1
        end = -1
        state = 0
        for at in range(start, min(len(text), start + self._longest)):
            self.steps += 1
            state = self._step(state, text[at])
            if state < 0:
                break
            if self._final in self._sets[state] and (not ends or _is_bound(text, at + 1)):
                end = at + 1
        return end

    def _step(self, state: int, character: str) -> int:
        """Return the state after a character; -1 where the expression does not go on."""
        after = self._steps.get((state, character))
        if after is not None:
            return after
        reached = {
            self._states[place].next
            for place in self._sets[state]
            if (takes := self._states[place].takes) is not None and takes(character)
        }
        after = -1
        if reached:
            closed = self._closed(reached)
            if closed not in self._places:
                self._places[closed] = len(self._sets)
                self._sets.append(closed)
            after = self._places[closed]
        if len(self._steps) >= MOST_REMEMBERED:
            self._steps = {}
        self._steps[state, character] = after
        return after

    def _closed(self, places: set[int]) -> frozenset[int]:
        waiting = [*places]
        closed: set[int] = set()
        while waiting:
            place = waiting.pop()
            if place not in closed:
                closed.add(place)
                waiting += self._states[place].free
        return frozenset(closed)


def _is_bound(text: str, at: int) -> bool:
    """Return whether a word begins or ends at a place."""
    before = at > 0 and _is_word(text[at - 1])
    after = at < len(text) and _is_word(text[at])
    return before != after


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


class _Builder:
    """Reads an expression into states."""

    def __init__(self, expression: str, ignores_case: bool) -> None:
        self._text = expression
        self._flags = re.IGNORECASE if ignores_case else re.NOFLAG
        self._at = 0
        self.states: list[_State] = []
        self.start, last = self._choice()
        if self._at < len(expression):
            raise BadExpression(f"`{expression[self._at]}` at its character {self._at + 1} closes nothing")
        self.final = last

    def _state(self, takes: TakesCharacter | None = None) -> int:
        if len(self.states) >= MOST_STATES:
            raise BadExpression("it is too large: its repetitions stand for more than 4,000 steps")
        self.states.append(_State(takes))
        return len(self.states) - 1

    def _free(self, place: int, *after: int) -> None:
        self.states[place].free += after

    def _choice(self) -> tuple[int, int]:
        begin = self._state()
        end = self._state()
        while True:
            first, last = self._sequence()
            self._free(begin, first)
            self._free(last, end)
            if self._peek() != "|":
                return begin, end
            self._at += 1

    def _sequence(self) -> tuple[int, int]:
        first = last = self._state()
        while self._peek() not in ("", "|", ")"):
            begin, end = self._repeated()
            self._free(last, begin)
            last = end
        return first, last

    def _repeated(self) -> tuple[int, int]:
        place = self._at
        piece = self._piece()
        least, most = self._count()
        if (least, most) == (1, 1):
            return piece
        after = self._at
        first = last = self._state()
        for count in range(max(least, most or 0)):
            if count:
                self._at = place
                piece = self._piece()
            self._free(last, piece[0])
            if count >= least:
                self._free(last, piece[1])
            last = piece[1]
        if most is None:
            if not least:
                self._at = place
                piece = self._piece()
                self._free(last, piece[0], piece[1])
                last = piece[1]
            self._free(last, piece[0])
        self._at = after
        end = self._state()
        self._free(last, end)
        return first, end

    def _count(self) -> tuple[int, int | None]:
        """Read how often the piece before may come; None for any number."""
        sign = self._peek()
        if sign in ("?", "*", "+"):
            self._at += 1
            counts: tuple[int, int | None] = {"?": (0, 1), "*": (0, None), "+": (1, None)}[sign]
        elif sign == "{":
            match = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}").match(self._text, self._at)
            if match is None:
                raise BadExpression("a `{` that counts nothing: write `\\{`")
            self._at = match.end()
            least = int(match[1])
            if match[2] is None:
                counts = (least, least)
            else:
                counts = (least, int(match[3]) if match[3] else None)
        else:
            return 1, 1
        least, most = counts
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise BadExpression(f"a repetition should be of {MOST_REPEATS} at most, and not of fewer than its least")
        if self._peek() in ("?", "+", "*", "{"):
            raise BadExpression("of several matches the longest counts: leave out the sign behind a repetition")
        return counts

    def _piece(self) -> tuple[int, int]:
        sign = self._peek()
        if sign == "(":
            return self._group()
        if sign in ("?", "*", "+", "{"):
            raise BadExpression(f"`{sign}` at its character {self._at + 1} repeats nothing")
        if sign in ("^", "$"):
            raise BadExpression(f"`{sign}` is not known: texts come in pieces, which have no beginning and no end")
        if sign == "[":
            takes = self._class()
        elif sign == "\\":
            takes = self._escape()
        elif sign == ".":
            self._at += 1
            takes = _is_no_newline
        else:
            self._at += 1
            takes = self._one_of(re.escape(sign))
        begin = self._state(takes)
        end = self._state()
        self.states[begin].next = end
        return begin, end

    def _group(self) -> tuple[int, int]:
        self._at += 1
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            raise BadExpression("a group with `(?` is not known, but for `(?:` and `(?i)` in front")
        inside = self._choice()
        if self._peek() != ")":
            raise BadExpression("a `(` is not closed")
        self._at += 1
        return inside

    def _class(self) -> TakesCharacter:
        match = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL).match(self._text, self._at)
        if match is None:
            raise BadExpression("a `[` is not closed")
        self._at = match.end()
        return self._one_of(match.group())

    def _escape(self) -> TakesCharacter:
        sign = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if sign in _ESCAPES:
            return self._one_of(_ESCAPES[sign])
        if sign in _CONTROL:
            return self._one_of(re.escape(_CONTROL[sign]))
        if not sign or sign.isalnum():
            raise BadExpression(f"`\\{sign}` is not known here")
        return self._one_of(re.escape(sign))

    def _one_of(self, expression: str) -> TakesCharacter:
        try:
            matcher = re.compile(expression, self._flags | re.DOTALL)
        except re.error as error:
            raise BadExpression(f"`{expression[:40]}`: {error}") from None
        fullmatch = matcher.fullmatch
        return lambda character: fullmatch(character) is not None

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]


def _is_no_newline(character: str) -> bool:
    return character != "\n"
