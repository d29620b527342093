"""Tells whether a place in a model's text is quoted: in a code fence, inline code, a block quote, quotation marks and the like.

`QuoteTracker` is given the prose before a call's opening mark and only looked at when there is such a mark, so an answer
without marks costs no more than being kept. It reads each character once, in lines, as Markdown does; where Markdown and
what people mean differ (a fence in a fence of the same length) it takes the reading under which more is quoted.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

FENCED: Final = "fenced"
INLINE_CODE: Final = "inline_code"
BLOCK_QUOTE: Final = "block_quote"
QUOTATION: Final = "quotation"
LISTED: Final = "listed"
TABLE: Final = "table"
INDENTED: Final = "indented"
HTML: Final = "html"
PROSE_BEHIND: Final = "prose_behind"
ECHO: Final = "echo"
THINKING: Final = "thinking"
NESTED: Final = "nested"
EXAMPLE: Final = "example"

TAB = 4
"""How many columns a tab counts for; four columns make an indented (quoted) block in Markdown."""

_CLOSERS: Final = {"“": "”", "„": "“”", "‟": "”", "«": "»", "‘": "’", "‚": "‘’", "‹": "›", "「": "」", "『": "』"}
_TAGS = "pre|code|blockquote|q|samp|kbd|xmp|textarea|example|quote"
_LINE = re.compile(r"([ \t\r]*)(?:(>)|(\||[-*+•](?=[ \t])|\d{1,3}[.)](?=[ \t]))|(?=[^\s]))?")
_TOKEN = re.compile(rf"\n|`+|~~~+|<!--|<(?P<tag>{_TAGS})(?:\s[^<>\n]*)?>|[\"'“”„‟«»‘’‚‹›「」『』]", re.IGNORECASE)
_RUN = re.compile(r"`+|~+")
_EXAMPLE = re.compile(
    r"(?:\b(?:for (?:example|instance)|examples?|e\.g\.|zum beispiel|beispiel|z\. ?b\.|(?:par )?exemple|(?:por )?ejemplo)"
    r"(?!\w)|例如|比如|示例|たとえば)[^\n]*[:：]\W*$|^\W*(?:for (?:example|instance)|e\.g\.)\W*$",
    re.IGNORECASE,
)
_SUPPOSITION = re.compile(
    r"\b(?:would|could|like this|such as|as follows|looks? like|syntax|format)\b.*[:：]\W*$", re.IGNORECASE
)
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """What began on an earlier line of the paragraph; whether it quotes a call is known when it closes behind it."""

    ticks: int = 0
    closers: str = ""

    def is_closed_by(self, ticks: Iterable[int], quotes: Iterable[str]) -> str | None:
        if self.ticks and self.ticks in ticks:
            return INLINE_CODE
        return QUOTATION if self.closers and not set(self.closers).isdisjoint(quotes) else None


def introduces_example(line: str, *, goes_on: bool) -> bool:
    """Whether calls behind this line are shown and not made: it says so itself, or speaks of what would be, and prose goes on
    behind them."""
    return bool(line) and bool(_EXAMPLE.search(line) or (goes_on and _SUPPOSITION.search(line)))


class QuoteTracker:
    """Follows prose, and says what the place behind it is quoted by."""

    def __init__(self) -> None:
        self._has_text = False
        self._begins_line = True
        self._indent = 0
        self._is_line_blank = True
        self._last = "\n"
        """The last character that is no blank, or the line break."""
        self._before = "\n"
        """The last character."""
        self._previous_blank = True
        self._line_kind = ""
        self._paragraph_kind = ""
        """What quoted a mark on a line of this paragraph: a call goes on over the next lines."""
        self._in_block_quote = False
        self._fences: list[str] = []
        self._fence_line = ""
        """A run of fence characters on this line, of which it is not known yet what it does."""
        self._ticks = 0
        self._ticks_line = False
        self._ticks_hold = False
        """A mark stood in this inline code: it is believed to be some, though it goes on over lines."""
        self._quotes: list[str] = []
        self._quote_opened_last = False
        self._html_end = ""

    def feed(self, text: str) -> None:
        """`text` ends where a call may begin, or anywhere in prose in which none begins."""
        self._read(text)

    def quoted(self) -> str | None:
        """Why the place behind all that was fed is quoted; None if it is not."""
        if self._fences or self._fence_line:
            return FENCED
        if self._html_end:
            return HTML
        if self._ticks and self._ticks_line:
            self._ticks_hold = True
            return FENCED if self._ticks > 2 else INLINE_CODE
        if self._in_block_quote:
            return BLOCK_QUOTE
        if not self._paragraph_kind:
            self._paragraph_kind = self._line_kind
            if self._last == "|":
                self._paragraph_kind = TABLE
            elif self._quote_opened_last:
                self._paragraph_kind = QUOTATION
            elif self._is_line_blank and self._indent >= TAB and self._previous_blank and self._has_text:
                self._paragraph_kind = INDENTED
        return self._paragraph_kind or None

    def open_span(self) -> OpenSpan | None:
        """What is open at this place and may still close behind it. Call `quoted` first."""
        if not self._ticks and not self._quotes:
            return None
        return OpenSpan(self._ticks, "".join(self._quotes))

    # -- reading

    def _read(self, text: str) -> None:
        at, end = 0, len(text)
        while at < end:
            if self._begins_line:
                at = self._line_begins(text, at)
                continue
            if self._html_end:
                at = self._in_html(text, at)
                continue
            found = _TOKEN.search(text, at)
            stop = found.start() if found else end
            if stop > at:
                self._plain(text[at:stop])
            if found is None:
                return
            at = found.end()
            self._piece(found, text)

    def _plain(self, text: str) -> None:
        self._before = text[-1]
        if shown := text.rstrip(" \t\r"):
            self._is_line_blank = False
            self._has_text = True
            self._last = shown[-1]
            self._quote_opened_last = False
            if self._fence_line and self._fences:
                # A run with words behind it closes nothing: it opens one fence more inside.
                self._fences.append(self._fence_line)
                self._fence_line = ""

    def _line_begins(self, text: str, at: int) -> int:
        found = _LINE.match(text, at)
        assert found is not None, "it matches nothing as well"
        blanks, quote, kind = found.groups()
        self._indent += len(blanks) + (TAB - 1) * blanks.count("\t")
        if found.end() == len(text) and not (quote or kind):
            self._before = text[-1] if text else self._before
            return found.end()
        self._begins_line = False
        if self._fences or self._html_end:
            run = _RUN.match(text, found.end(1))
            top = self._fences[-1] if self._fences else ""
            if top and run and run.group()[0] == top[0] and len(run.group()) >= len(top):
                self._fence_line = run.group()
                self._is_line_blank = False
                return run.end()
            return found.end(1)
        if quote:
            self._in_block_quote = True
        elif kind:
            self._line_kind = TABLE if kind == "|" else LISTED
        if quote or kind:
            self._is_line_blank, self._has_text = False, True
            self._before = self._last = text[found.end() - 1]
        elif text.startswith("~~~", found.end(1)):
            run = _RUN.match(text, found.end(1))
            assert run is not None
            self._fence_line = run.group()
            return run.end()
        return found.end()

    def _in_html(self, text: str, at: int) -> int:
        """Up to the end of a quoting tag or comment; line breaks count, because lines go on behind it."""
        found = re.compile(rf"{re.escape(self._html_end)}|\n", re.IGNORECASE).search(text, at)
        if found is None:
            self._plain(text[at:])
            return len(text)
        if found.group() == "\n":
            self._line_ends()
        else:
            self._html_end = ""
            self._before = self._last = ">"
        return found.end()

    def _piece(self, found: "re.Match[str]", text: str) -> None:
        piece = found.group()
        if piece == "\n":
            self._line_ends()
            return
        if self._fences or self._fence_line:
            self._plain(piece)
            return
        self._is_line_blank, self._has_text = False, True
        before, self._before, self._last = self._before, piece[-1], piece[-1]
        self._quote_opened_last = False
        if piece[0] == "`":
            if not self._ticks:
                self._ticks, self._ticks_line = len(piece), True
            elif self._ticks == len(piece):
                self._ticks, self._ticks_line, self._ticks_hold = 0, False, False
        elif self._ticks or piece[0] == "~":
            return
        elif piece[0] == "<":
            self._html_end = "-->" if piece == "<!--" else f"</{found['tag']}>"
        else:
            self._quote(piece, before, text[found.end() : found.end() + 1])

    def _quote(self, char: str, before: str, behind: str) -> None:
        opens = before in " \t\r\n([{—–:*_" or not before
        if char in "\"'":
            if char in self._quotes and not (opens and behind and behind not in " \t\r\n"):
                if char == '"' or not (behind.isalnum() and before.isalnum()):
                    self._quotes.remove(char)
                    self._quote_closes()
            elif opens and (not behind or behind not in " \t\r"):
                self._quotes.append(char)
                self._quote_opened_last = True
            return
        for place in range(len(self._quotes) - 1, -1, -1):
            if char in self._quotes[place] and len(self._quotes[place]) >= 1 and self._quotes[place] not in "\"'":
                del self._quotes[place:]
                self._quote_closes()
                return
        if char in _CLOSERS:
            self._quotes.append(_CLOSERS[char])
            self._quote_opened_last = True
        elif char == "»" and opens:
            self._quotes.append("«")
            self._quote_opened_last = True

    def _quote_closes(self) -> None:
        if not self._quotes and self._paragraph_kind == QUOTATION:
            self._paragraph_kind = ""

    def _line_ends(self) -> None:
        if self._fence_line:
            if self._fences:
                self._fences.pop()
            else:
                self._fences.append(self._fence_line)
            self._fence_line = ""
        elif self._ticks > 2 and self._ticks_line:
            self._fences.append("`" * self._ticks)
            self._ticks = 0
        self._ticks_line = self._ticks_hold and self._ticks > 0
        self._line_kind = ""
        if self._is_line_blank:
            self._in_block_quote = self._ticks_line = self._ticks_hold = False
            self._paragraph_kind = ""
            self._ticks = 0
            self._quotes.clear()
        self._previous_blank = self._is_line_blank
        self._begins_line = self._is_line_blank = True
        self._indent = 0
        self._before = "\n"
        if self._last == "|":
            self._last = "\n"


class ParagraphRest:
    """What closes in the rest of a paragraph, gathered from the end of a text towards its beginning."""

    def __init__(self) -> None:
        self.ticks: set[int] = set()
        self.quotes: set[str] = set()

    def add_before(self, text: str) -> None:
        """`text` stands before all that was added."""
        end = _BLANK_LINE.search(text)
        if end:
            self.ticks.clear()
            self.quotes.clear()
            text = text[: end.start()]
        for found in _TOKEN.finditer(text):
            piece = found.group()
            if piece[0] == "`":
                self.ticks.add(len(piece))
            elif piece[0] not in "\n~<" and (piece != "'" or not text[found.end() : found.end() + 1].isalnum()):
                self.quotes.add(piece)
