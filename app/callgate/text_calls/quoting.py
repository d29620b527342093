"""Follows how a model's text quotes: fences, inline code, block quotes, quotation marks, HTML, tables.

`QuoteTracker` is fed the prose of an answer and is told where calls stand in it. Whatever closes around a call quotes it; what is
open at the end of the text, except for a fence, quotes nothing. It reads lines as Markdown does, each character once, and knows
no words of any language. It is fed only where there is a call or a mark, so that other answers cost nothing here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

FENCED: Final = "fenced"
INLINE_CODE: Final = "inline_code"
BLOCK_QUOTE: Final = "block_quote"
QUOTATION: Final = "quotation"
TABLE: Final = "table"
HTML: Final = "html"
THINKING: Final = "thinking"
INVENTED_TURN: Final = "invented_turn"

MARKER: Final = r"(?:[-*+•◦▪▫‣⁃∙●○■□–—]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{2,4})[.)])"
"""The marker of a list item, before a blank."""

_ELEMENTS = (
    "a|abbr|address|article|aside|audio|b|bdi|bdo|big|blockquote|body|button|canvas|caption|center|cite|code|colgroup|data|datalist"
    "|dd|del|details|dfn|dialog|div|dl|dt|em|fieldset|figcaption|figure|font|footer|form|h[1-6]|head|header|hgroup|html|i|iframe|ins"
    "|kbd|label|legend|li|main|map|mark|menu|meter|nav|noscript|object|ol|optgroup|option|output|p|picture|pre|progress|q|rp|rt|ruby"
    "|samp|script|search|section|select|small|span|strike|strong|style|sub|summary|sup|svg|table|tbody|td|template|textarea|tfoot|th"
    "|thead|time|title|tr|tt|u|ul|var|video|xmp"
)
"""HTML's elements with an end tag, but for `s`, whose end tag is a token of many templates."""
_THOUGHTS = "thoughts?|reasoning|reflection|scratchpad|analysis|inner_monologue|seed:think|mm:think|longcat_think|think:opensource"
_RESULTS = "tool_response|tool_result|(?:antml:|｜DSML｜)?function_results"
"""Tags of other templates for thinking, and for tool results."""
_PAIRS: Final = {
    "<!--": ("-->", HTML),
    "[think]": ("[/think]", THINKING),
    "◁think▷": ("◁/think▷", THINKING),
    "<|begin_of_thought|>": ("<|end_of_thought|>", THINKING),
}
_OTHERS = "user|system|developer|tool|ipython"
_TURN = (
    rf"<\|im_start\|>[ \t]{{0,2}}(?:{_OTHERS})\b|<\|start_header_id\|>[ \t]{{0,2}}(?:{_OTHERS})\b"
    rf"|<start_of_turn>[ \t]{{0,2}}(?:{_OTHERS})\b|<\|turn>(?:{_OTHERS})\b|\]~b\](?:{_OTHERS})\b"
    r"|<\|(?:user|system|observation|tool|im_user|im_system|user_token|system_token|message_user|message_system|message_tool)\|>"
    r"|<｜(?:user|system|tool▁outputs▁begin)｜>|\[INST\]|\[TOOL_RESULTS\]|\[SYSTEM_PROMPT\]"
    r"|<\|START_TOOL_RESULT\|>|<tool_response\|>|<\|tool_response>|<end_function_response>|<start_function_response>"
)
"""Tokens that begin a user's, system or tool's turn in chat templates."""
_NAMING: Final = " \t([{\"'“‘«:,"
"""Characters before a token that a sentence only names."""
TOKEN = re.compile(
    rf"`+|{'|'.join(map(re.escape, (*_PAIRS, *(end for end, _ in _PAIRS.values()))))}"
    rf"|<(?P<tag>{_ELEMENTS})(?:\s[^<>]*)?(?<!/)>|</(?P<end>{_ELEMENTS}|{_THOUGHTS})\s*>|<(?P<thought>{_THOUGHTS})>"
    rf"|(?P<turn>{_TURN})|(?P<result></?(?:{_RESULTS})>|## Return of functions\.)|[\"'“”„‟«»‘’‚‹›「」『』]",
    re.IGNORECASE,
)
_FIRST = re.compile("[`◁\"'“”„‟«»‘’‚‹›「」『』]|<(?=[!/|｜\\w])|\\[(?=[/\\w])|\\](?=~)|-(?=->)|#(?=#)")
"""What a token begins with: its first character, and of those that are frequent in code what follows it."""
_CLOSERS: Final = {"“": "”", "„": "“”", "‟": "”", "«": "»", "‘": "’", "‚": "‘’", "‹": "›", "「": "」", "『": "』"}
_LINE = re.compile(rf"[ \t\r]*(?:{MARKER}[ \t]+)*(?P<kind>[>|]|`{{3,}}|~{{3,}}|(?=[^\s])|)")
TEMPLATE_MARK: Final = (
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</s>|<(?:end|start)_of_\w{1,20}>|<eos>|<\|?\w{1,20}\|>|\[e~\["
)
"""Tokens of templates, which end a turn or begin one."""
_TOKENS_ALONE = re.compile(rf"(?:\s|{TEMPLATE_MARK})*+")
_CLOSING = re.compile(r"[ \t\r;,]*(`{3,}|~{3,})")
_FENCE_RUN = re.compile(r"```+|~~~+")
_INFO = re.compile(r"[\w+\-.]*[ \t\r]*")
_LAYOUT = " \t\r;,"
_CALL: Final = "\ue000"
"""A private-use character as the last one before a place behind a call."""
_ELEMENT: Final = (HTML, THINKING)
"""How the content of an element is quoted."""
_MOST_OPEN: Final = 64
"""Quotations that are open at a time; a text that opens more is no text."""


class Quotable(Protocol):
    """Calls that may be quoted."""

    quoted: str | None


@dataclass(slots=True)
class _Fence:
    """A code fence, or a run of fence characters that may open or close one."""

    run: str
    start: int
    first_call: int
    begins_line: bool
    content: int = 0
    """Where the line behind it begins, in characters of prose like `start`."""
    holds_other: bool = False
    """It holds anything but calls."""
    has_info: bool = False
    """Text stands behind the run on its line."""


@dataclass(slots=True)
class _Line:
    """What was read of a line."""

    is_blank: bool = True
    only_calls: bool = True
    """It has nothing but blanks and calls so far."""
    kind: str = ""
    """How the whole line is quoted."""
    last: str = ""
    """Its last character."""
    opened_quote: bool = False
    """A quotation mark has just opened."""


@dataclass(slots=True, eq=False)
class _Span:
    """What has been opened, and quotes the calls up to its end."""

    end: str
    reason: str
    first_call: int
    line: _Line
    is_block: bool = False
    """It opened at the beginning of its line, and quotes on other lines as well."""


class QuoteTracker:
    """Follows prose, and says of each call in it whether and how it is quoted.

    `feed`, `add_call`, `add_mark` and `begin_message` come in the order of the text, `finish` comes last.
    """

    def __init__(self) -> None:
        self.markup: list[tuple[int, int]] = []
        """The lines of fences that hold nothing but calls: where they begin and end, in characters of prose."""
        self.turn_at: int | None = None
        """Where a user's, system or tool's turn begins, which the model must have invented."""
        self.at = 0
        """The characters of prose that were read."""
        self._calls: list[Quotable] = []
        self._line = _Line()
        self._open: list[_Span] = []
        """Inline code, quotation marks and elements."""
        self._fences: list[_Fence] = []
        self._run: _Fence | None = None
        """A run of fence characters on this line, which opens or closes a fence if the line ends so."""
        self._swallowed_fence_at: int | None = None
        """The first call behind a broken one with fences in its text: the next fence may close around it."""

    # -- what is fed

    def feed(self, text: str) -> None:
        """Read prose: whole lines, or up to a call or a mark."""
        if not text:
            return
        *lines, last_line = text.split("\n")
        for line in lines:
            self._read(line)
            self._end_line()
            self.at += 1
        self._read(last_line)

    def add_call(self, call: Quotable, broken_text: str = "") -> None:
        """Note calls at this place. The text of a broken one may open a quotation, and its fences may be those around it."""
        if self.turn_at is not None:
            call.quoted = INVENTED_TURN
        elif self._line.kind:
            call.quoted = self._line.kind
        elif self._line.last == "|":
            call.quoted = TABLE
        self._calls.append(call)
        self.add_mark()
        if _FENCE_RUN.search(broken_text):
            self._swallowed_fence_at = len(self._calls)
        if broken_text and not self._fences:
            self._inline(_FENCE_RUN.sub("", broken_text), None)

    def add_mark(self) -> None:
        """Note the mark of calls at this place."""
        self._line.is_blank = self._line.opened_quote = False
        self._line.last = _CALL

    def quoted(self) -> str | None:
        """Return how a mark at this place may be quoted; None if nothing is open here."""
        if self._fences or self._run is not None:
            return FENCED
        if self._line.kind:
            return self._line.kind
        if self._open:
            reasons = {span.reason for span in self._open if span.is_block or span.line is self._line}
            if INLINE_CODE in reasons:
                return INLINE_CODE
            if not reasons.isdisjoint(_ELEMENT):
                return HTML
        if self._line.opened_quote:
            return QUOTATION
        if self._line.last == "|":
            return TABLE
        return None

    def begin_message(self) -> None:
        """Close all that is open, at the beginning of a message."""
        self._open.clear()
        self._fences.clear()
        self._run = None
        self._end_line()

    def finish(self, *, is_cut: bool = False) -> None:
        """Note the end of the text: a fence that is still open ends with it. What else is open quotes the calls in it if the
        text was cut, because nobody knows whether it would have been closed."""
        if is_cut:
            for span in self._open:
                self._quote(span.first_call, span.reason)
        self._end_line()
        for depth, fence in enumerate(self._fences, 1):
            fence.holds_other = fence.holds_other or depth < len(self._fences)
            self._settle_fence(fence, self.at)

    # -- lines

    def _read(self, text: str) -> None:
        """Read a line, or what stands of it up to a call."""
        start = 0
        if self._line.is_blank and text.strip(" \t\r"):
            start = self._begin_line(text)
        if self._fences and self._run is None:
            self._read_fenced(text, start)
        elif self._line.kind != BLOCK_QUOTE and start < len(text):
            self._read_on(text[start:], self.at + start)
        self.at += len(text)

    def _begin_line(self, text: str) -> int:
        """Read the beginning of a line; return where its text begins."""
        head = _LINE.match(text)
        assert head is not None, "it matches nothing as well"
        self._line.is_blank = False
        kind = head["kind"]
        indent = len(text) - len(text.lstrip(" \t\r"))
        if self._fences:
            # The marker of an item is no text. Only a run of fence characters means anything here.
            if kind[:1] in ("`", "~"):
                return indent
            return head.start("kind")
        if head.start("kind") > indent or kind == ">":
            self._end_paragraph()  # a list item, or a block quote
        if kind == ">":
            self._line.kind = BLOCK_QUOTE
        elif kind == "|":
            self._line.kind = TABLE
        elif kind:
            begin = head.start("kind") if head.start("kind") > indent else 0
            self._run = _Fence(kind, self.at + begin, len(self._calls), begins_line=True)
            return head.end()
        return head.start("kind")

    def _read_fenced(self, text: str, start: int) -> None:
        fence = self._fences[-1]
        run = _CLOSING.match(text, start) if self._line.only_calls else None
        if run is not None and run[1].startswith(fence.run):
            self._run = _Fence(run[1], self.at + start, len(self._calls), begins_line=True)
            if run.end() < len(text):
                self._read_on(text[run.end() :], self.at + run.end())
        elif text[start:].strip(_LAYOUT):
            self._line.only_calls = False
            fence.holds_other = True

    def _read_on(self, text: str, place: int) -> None:
        """Read text that is in no fence, or behind a run of fence characters."""
        if self._run is not None and not self._may_be_fence(self._run, text):
            # It was inline code.
            if not any(span.end == self._run.run for span in self._open):
                self._open.append(_Span(self._run.run, INLINE_CODE, self._run.first_call, self._line))
            self._run = None
        if self._run is None:
            self._inline(text, place)

    def _may_be_fence(self, fence: _Fence, text: str) -> bool:
        """Note the text behind a run of fence characters on its line. False: it is none of a fence."""
        if (
            not self._fences
            and fence.run[0] == "`"
            and ("`" in text or not (fence.begins_line or _INFO.fullmatch(text)))
        ):
            return False
        if not _TOKENS_ALONE.fullmatch(text):
            fence.has_info = True
            fence.holds_other = len(self._calls) > fence.first_call
            if self._fences:
                self._fences[-1].holds_other = True
        return True

    def _end_line(self) -> None:
        if self._run is not None:
            self._end_fence_line(self._run)
            self._run = None
        elif self._line.is_blank:
            self._end_paragraph()
        self._line = _Line()

    def _end_fence_line(self, run: _Fence) -> None:
        """Close the innermost fence at the end of its closing line, or open one."""
        if self._swallowed_fence_at is not None:
            self._quote(self._swallowed_fence_at, FENCED)
        if self._fences and not run.has_info and len(self._calls) == run.first_call:
            self._settle_fence(self._fences.pop(), run.start)
        else:
            run.content = self.at + 1
            self._fences.append(run)
            self._end_paragraph()

    def _settle_fence(self, fence: _Fence, end: int) -> None:
        """Note the end of a fence, whose last line begins at `end`."""
        if not fence.holds_other and len(self._calls) > fence.first_call:
            self.markup += [(fence.start, fence.content), (end, self.at)]
        else:
            self._quote(fence.first_call, FENCED)
        if self._fences and self._fences[-1] is not fence:
            self._fences[-1].holds_other = True

    def _end_paragraph(self) -> None:
        self._open = [span for span in self._open if span.reason in _ELEMENT]

    # -- within a line

    def _inline(self, text: str, place: int | None) -> None:
        """Read text with quotation marks and the like. `place`: where it begins; None for the text of a broken call."""
        end = 0
        for token in tokens_in(text):
            if token.start() > end:
                self._line.opened_quote = False
                self._line.last = text[token.start() - 1]
            self._token(token, text, place)
            end = token.end()
            if self._run is not None:
                return
        if shown := text[end:].rstrip(" \t\r"):
            self._line.opened_quote = self._line.only_calls = False
            self._line.last = shown[-1]

    def _token(self, token: "re.Match[str]", text: str, place: int | None) -> None:
        piece = token.group()
        before = self._line.last
        begins_line = self._line.only_calls and not text[: token.start()].strip()
        self._line.only_calls = self._line.opened_quote = False
        if piece[0] == "`":
            is_fence = len(piece) > 2 and _INFO.fullmatch(text, token.end()) is not None
            self._tick(piece, None if place is None or not is_fence else place + token.start())
        elif token["turn"] or token["result"]:
            if place is not None and self.turn_at is None and (token["turn"] or self._calls):
                is_named = before != "" and before in _NAMING and not begins_line
                if not is_named and not any(span.reason not in _ELEMENT for span in self._open):
                    self.turn_at = place + token.start()
            if token["result"] and piece[0] == "<":
                self._element(piece, token, begins_line=begins_line)
        elif len(piece) == 1:
            self._quotation(piece, before, text[token.end() : token.end() + 1])
        else:
            self._element(piece, token, begins_line=begins_line)
        self._line.last = piece[-1]

    def _tick(self, run: str, place: int | None) -> None:
        """`place`: where it begins, if it may open a fence."""
        span = next((span for span in self._open if span.end == run), None)
        if span is not None:
            self._close(span, INLINE_CODE, QUOTATION, *_ELEMENT)
        elif place is not None:
            self._run = _Fence(run, place, len(self._calls), begins_line=False)
        else:
            self._open_span(run, INLINE_CODE)

    def _quotation(self, char: str, before: str, behind: str) -> None:
        is_opening = not before or before in " \t\r([{—–:*_"
        for span in reversed(self._open):
            if span.reason != QUOTATION or char not in span.end:
                continue
            if char in "\"'" and ((is_opening and behind.strip()) or (char == "'" and behind.isalnum())):
                break
            self._close(span, QUOTATION)
            return
        if char in "\"'":
            if is_opening and behind not in (" ", "\t", "\r"):
                end = char
            else:
                end = ""
        elif char == "»":
            end = "«" if is_opening else ""
        else:
            end = _CLOSERS.get(char, "")
        if end:
            self._line.opened_quote = self._open_span(end, QUOTATION)

    def _element(self, piece: str, token: "re.Match[str]", *, begins_line: bool) -> None:
        piece = piece.lower()
        end, reason = _PAIRS.get(piece, ("", ""))
        if token["tag"]:
            end = f"</{token['tag'].lower()}>"
            reason = HTML
        elif token["thought"] or (token["result"] and piece[1] != "/"):
            end = f"</{piece[1:]}"
            reason = THINKING
        if end:
            self._open_span(end, reason, is_block=begins_line)
            return
        if token["end"]:
            piece = f"</{token['end'].lower()}>"
        span = next((span for span in reversed(self._open) if span.end == piece), None)
        if span is not None:
            self._close(span, *_ELEMENT)

    def _open_span(self, end: str, reason: str, *, is_block: bool = False) -> bool:
        if len(self._open) >= _MOST_OPEN and reason != INLINE_CODE:
            return False
        self._open.append(_Span(end, reason, len(self._calls), self._line, is_block))
        return True

    def _close(self, span: _Span, *reasons: str) -> None:
        """Quote the calls in a span, and forget those behind its beginning that quote so."""
        self._quote(span.first_call, span.reason)
        place = self._open.index(span)
        self._open[place:] = [other for other in self._open[place:] if other.reason not in reasons]

    def _quote(self, first_call: int, reason: str) -> None:
        for call in self._calls[first_call:]:
            call.quoted = call.quoted or reason


def tokens_in(text: str) -> Iterator["re.Match[str]"]:
    """Find the tokens of a text, one by one: a search for the next one would hold the interpreter for all that has none."""
    at = 0
    while (first := _FIRST.search(text, at)) is not None:
        token = TOKEN.match(text, first.start())
        if token is None:
            at = first.end()
        else:
            yield token
            at = token.end()
