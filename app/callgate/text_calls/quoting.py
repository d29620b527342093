"""Follows how a model's text quotes: fences, inline code, block quotes, quotation marks, HTML, tables.

`QuoteTracker` is fed the prose of an answer and is told where calls stand in it. Whatever closes around a call quotes it; what is
open at the end of the text, except for a fence, quotes nothing. It reads lines as Markdown does, each character once, and knows
no words of any language. It is fed only where there is a call or a mark, so that other answers cost nothing here.
"""

import re
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
_TOKEN = re.compile(
    rf"`+|{'|'.join(map(re.escape, (*_PAIRS, *(end for end, _ in _PAIRS.values()))))}"
    rf"|<(?P<tag>{_ELEMENTS})(?:\s[^<>]*)?(?<!/)>|</(?P<end>{_ELEMENTS}|{_THOUGHTS})\s*>|<(?P<thought>{_THOUGHTS})>"
    rf"|(?P<turn>{_TURN})|(?P<result></?(?:{_RESULTS})>|## Return of functions\.)|[\"'“”„‟«»‘’‚‹›「」『』]",
    re.IGNORECASE,
)
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
_MOST_OPEN: Final = 64
"""Elements and quotation marks that are open at a time; a text that opens more is no text."""


class Quotable(Protocol):
    """Calls that may be quoted."""

    quoted: str | None


@dataclass(slots=True)
class Fence:
    """A code fence: where its lines begin and end, in characters of prose, and whether it holds anything but calls."""

    run: str
    start: int
    first_call: int
    begins_line: bool
    content: int = 0
    close: int = -1
    end: int = -1
    holds_other: bool = False
    has_info: bool = False
    """Text stands behind the run on its line."""


@dataclass(slots=True)
class _Span:
    """What has been opened and quotes the calls up to its end."""

    end: str
    reason: str
    first_call: int
    order: int
    line: int
    is_block: bool = False


class QuoteTracker:
    """Follows prose, and says of each call in it whether and how it is quoted."""

    def __init__(self, start: int = 0) -> None:
        """`start`: the characters of prose before its own."""
        self.markup: list[Fence] = []
        """The fences that hold nothing but calls."""
        self.turn_at: int | None = None
        """Where a user's, system or tool's turn begins, which the model must have invented."""
        self.at = start
        """The characters of prose that were read."""
        self._from = start
        """Where the text that is being read begins."""
        self._calls: list[Quotable] = []
        self._order = 0
        self._line = 0
        self._begins_line = True
        self._is_blank = True
        self._only_calls = True
        """The line has nothing but blanks and calls so far."""
        self._kind = ""
        """How the whole line is quoted."""
        self._last = ""
        """The last character of the line."""
        self._opened_quote = False
        self._fences: list[Fence] = []
        self._fence: Fence | None = None
        """A run of fence characters on this line, which opens or closes a fence if the line ends so."""
        self._doubt: int | None = None
        """The first call behind a broken one that has fences in its text: a later fence may close around it."""
        self._ticks: dict[int, _Span] = {}
        self._quotes: list[_Span] = []
        self._elements: list[_Span] = []

    # -- what is fed

    def feed(self, text: str) -> None:
        """Read prose: whole lines, or up to a call or a mark."""
        line, line_break, rest = text.partition("\n")
        while True:
            if line:
                self._read(line)
                self.at += len(line)
            if not line_break:
                return
            self._end_line()
            self.at += 1
            line, line_break, rest = rest.partition("\n")

    def add_call(self, call: Quotable, broken_text: str = "") -> None:
        """Note calls at this place. The text of a broken one may open a quotation, and its fences may be those around it."""
        if self._kind:
            call.quoted = self._kind
        elif self._last == "|":
            call.quoted = TABLE
        if self.turn_at is not None:
            call.quoted = INVENTED_TURN
        self._calls.append(call)
        self.add_mark()
        if broken_text:
            if _FENCE_RUN.search(broken_text):
                self._doubt = len(self._calls)
            if not self._fences:
                self._inline(_FENCE_RUN.sub("", broken_text), moves=False)

    def add_mark(self) -> None:
        """Note the mark of calls at this place."""
        self._is_blank = self._begins_line = self._opened_quote = False
        self._last = _CALL

    def quoted(self) -> str | None:
        """Return how a mark at this place may be quoted; None if nothing is open here."""
        if self._fences or self._fence is not None:
            return FENCED
        if self._kind:
            return self._kind
        if any(tick.line == self._line for tick in self._ticks.values()):
            return INLINE_CODE
        if self._elements and any(element.is_block or element.line == self._line for element in self._elements):
            return HTML
        if self._opened_quote:
            return QUOTATION
        return TABLE if self._last == "|" else None

    def begin_message(self) -> None:
        """Close all that is open, at the beginning of a message."""
        self._end_paragraph()
        self._fences.clear()
        self._elements.clear()
        self._fence = None
        self._end_line()

    def finish(self, *, is_cut: bool = False) -> None:
        """Note the end of the text: a fence that is still open ends with it. What else is open quotes the calls in it if the
        text was cut, because nobody knows whether it would have been closed."""
        if is_cut:
            for span in (*self._ticks.values(), *self._quotes, *self._elements):
                self._quote(span.first_call, span.reason)
        self._end_line()
        for depth, fence in enumerate(self._fences):
            fence.holds_other = fence.holds_other or depth + 1 < len(self._fences)
            fence.close = fence.end = self.at
            self._settle_fence(fence)

    # -- lines

    def _read(self, text: str) -> None:
        start = 0
        if self._begins_line:
            head = _LINE.match(text)
            assert head is not None, "it matches nothing as well"
            if head.end() == len(text) and not head["kind"] and not text.strip():
                return
            start = self._begin_line(head, text)
        if not self._fences or self._fence is not None:
            self._read_on(text[start:], start)
            return
        if self._only_calls:
            run = _CLOSING.match(text, start)
            if (
                run is not None
                and self._fences[-1].run.startswith(run[1][:3])
                and len(run[1]) >= len(self._fences[-1].run)
            ):
                self._fence = Fence(run[1], self.at + start, len(self._calls), begins_line=True)
                self._read_on(text[run.end() :], run.end())
                return
        if text[start:].strip(_LAYOUT):
            self._only_calls = False
            self._fences[-1].holds_other = True

    def _begin_line(self, head: "re.Match[str]", text: str) -> int:
        self._begins_line = False
        self._is_blank = False
        kind = head["kind"]
        if self._fences:
            # The marker of an item is no text. Only a run of fence characters means anything here.
            return head.start("kind") if not kind or kind[0] not in "`~" else len(text) - len(text.lstrip(" \t\r"))
        if head.end() - len(kind) > len(text) - len(text.lstrip(" \t\r")) or kind[:1] == ">":
            self._end_paragraph()  # a list item, or a block quote
        if kind == ">":
            self._kind = BLOCK_QUOTE
        elif kind == "|":
            self._kind = TABLE
        elif kind:
            blanks = len(text) - len(text.lstrip(" \t\r"))
            at_start = head.start("kind") == blanks
            begin = self.at + (0 if at_start else head.start("kind"))
            self._fence = Fence(kind, begin, len(self._calls), begins_line=True)
            return head.end()
        return head.start("kind")

    def _read_on(self, text: str, start: int) -> None:
        """Read text that is in no fence, or behind a run of fence characters."""
        self._from = self.at + start
        if self._kind == BLOCK_QUOTE or not text:
            return
        if self._fence is not None and not self._may_be_fence(self._fence, text):
            # It was inline code.
            first_call = self._fence.first_call
            self._ticks.setdefault(len(self._fence.run), self._span("", INLINE_CODE, first_call=first_call))
            self._fence = None
        if self._fence is None:
            self._inline(text)

    def _may_be_fence(self, fence: Fence, text: str) -> bool:
        """Note the text behind a run of fence characters on its line. False: it is none of a fence."""
        if not self._fences and fence.run[0] == "`":
            is_tick = "`" in text if fence.begins_line else not _INFO.fullmatch(text)
            if is_tick:
                return False
        if not _TOKENS_ALONE.fullmatch(text):
            fence.has_info = True
            fence.holds_other = len(self._calls) > fence.first_call
            if self._fences:
                self._fences[-1].holds_other = True
        return True

    def _end_line(self) -> None:
        if (fence := self._fence) is not None:
            self._fence = None
            closes = bool(self._fences) and not fence.has_info and len(self._calls) == fence.first_call
            if self._doubt is not None:
                self._quote(self._doubt, FENCED)
            if closes:
                top = self._fences.pop()
                top.close = fence.start
                top.end = self.at
                self._settle_fence(top)
            else:
                fence.content = self.at + 1
                self._fences.append(fence)
                self._end_paragraph()
        elif self._is_blank:
            self._end_paragraph()
        self._line += 1
        self._begins_line = self._is_blank = self._only_calls = True
        self._opened_quote = False
        self._kind = self._last = ""

    def _settle_fence(self, fence: Fence) -> None:
        if not fence.holds_other and len(self._calls) > fence.first_call:
            self.markup.append(fence)
        else:
            self._quote(fence.first_call, FENCED)
        if len(self._fences) and self._fences[-1] is not fence:
            self._fences[-1].holds_other = True

    def _end_paragraph(self) -> None:
        self._ticks.clear()
        self._quotes.clear()

    # -- within a line

    def _inline(self, text: str, *, moves: bool = True) -> None:
        end = 0
        for token in _TOKEN.finditer(text):
            if token.start() > end:
                self._opened_quote = False
                self._last = text[token.start() - 1]
            self._piece(token, text, moves=moves)
            end = token.end()
            if self._fence is not None:
                return
        if shown := text[end:].rstrip(" \t\r"):
            self._opened_quote = self._only_calls = False
            self._last = shown[-1]

    def _piece(self, token: "re.Match[str]", text: str, *, moves: bool) -> None:
        piece = token.group()
        before = text[token.start() - 1] if token.start() else self._last
        begins_line = not text[: token.start()].strip() and self._only_calls
        self._only_calls = False
        self._opened_quote = False
        if piece[0] == "`":
            self._tick(piece, text[token.end() :], token.start(), moves=moves)
        elif token["turn"] or token["result"]:
            is_meant = (token["turn"] or self._calls) and (begins_line or not before or before not in _NAMING)
            if is_meant and moves and self.turn_at is None and not self._ticks and not self._quotes:
                self.turn_at = self._from + token.start()
            if token["result"] and piece[0] == "<":
                self._element(piece, token, begins_line=begins_line)
        elif len(piece) == 1:
            self._quotation(piece, before, text[token.end() : token.end() + 1])
        else:
            self._element(piece, token, begins_line=begins_line)
        self._last = piece[-1]

    def _tick(self, run: str, behind: str, start: int, *, moves: bool) -> None:
        span = self._ticks.pop(len(run), None)
        if span is not None:
            self._quote(span.first_call, span.reason)
            for size in [size for size, tick in self._ticks.items() if tick.order > span.order]:
                del self._ticks[size]
            self._quotes = [quote for quote in self._quotes if quote.order < span.order]
            self._elements = [element for element in self._elements if element.order < span.order]
        elif moves and len(run) > 2 and _INFO.fullmatch(behind):
            self._fence = Fence(run, self._from + start, len(self._calls), begins_line=False)
        else:
            self._ticks[len(run)] = self._span("", INLINE_CODE)

    def _quotation(self, char: str, before: str, behind: str) -> None:
        is_opening = not before or before in " \t\r([{—–:*_"
        for place in range(len(self._quotes) - 1, -1, -1):
            span = self._quotes[place]
            if char not in span.end:
                continue
            if char in "\"'" and ((is_opening and behind.strip()) or (char == "'" and behind.isalnum())):
                break
            self._quote(span.first_call, span.reason)
            del self._quotes[place:]
            return
        if len(self._quotes) >= _MOST_OPEN:
            return
        if char in "\"'":
            if is_opening and behind not in (" ", "\t", "\r"):
                self._quotes.append(self._span(char, QUOTATION))
                self._opened_quote = True
        elif char in _CLOSERS or (char == "»" and is_opening):
            self._quotes.append(self._span(_CLOSERS.get(char, "«"), QUOTATION))
            self._opened_quote = True

    def _element(self, piece: str, token: "re.Match[str]", *, begins_line: bool) -> None:
        name = (token["tag"] or token["thought"] or "").lower()
        end, reason = _PAIRS.get(piece.lower(), ("", ""))
        if name:
            end, reason = f"</{name}>", HTML if token["tag"] else THINKING
        elif token["result"] and piece[1] != "/":
            end, reason = f"</{piece[1:].lower()}", THINKING
        if end:
            if len(self._elements) < _MOST_OPEN:
                self._elements.append(self._span(end, reason, is_block=begins_line))
            return
        closed = f"</{token['end'].lower()}>" if token["end"] else piece.lower()
        for place in range(len(self._elements) - 1, -1, -1):
            if self._elements[place].end == closed:
                self._quote(self._elements[place].first_call, self._elements[place].reason)
                del self._elements[place:]
                return

    def _span(self, end: str, reason: str, *, first_call: int | None = None, is_block: bool = False) -> _Span:
        self._order += 1
        first = len(self._calls) if first_call is None else first_call
        return _Span(end, reason, first, self._order, self._line, is_block)

    def _quote(self, first_call: int, reason: str) -> None:
        for call in self._calls[first_call:]:
            call.quoted = call.quoted or reason
