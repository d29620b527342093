"""Decides whether a place in a model's text is quoted: in a code fence, inline code, a block quote, quotation marks and
the like.

`QuoteTracker` is fed the prose before a call's opening mark, and only where there is such a mark, so that an answer without
marks costs nothing here. It reads lines as Markdown does, each character once; in ambiguous cases (a fence in a fence of the
same length) it assumes that more is quoted.
"""

import re
from collections import Counter
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
INVENTED_TURN: Final = "invented_turn"

TAB = 4
"""Columns of a tab; four columns make an indented (code) block in Markdown."""

_CLOSERS: Final = {"“": "”", "„": "“”", "‟": "”", "«": "»", "‘": "’", "‚": "‘’", "‹": "›", "「": "」", "『": "』"}
_TAGS = "pre|code|blockquote|q|samp|kbd|xmp|textarea|script|example|quote"
_THOUGHTS = "thoughts?|reasoning|reflection|scratchpad|analysis|inner_monologue|seed:think|mm:think|longcat_think|think:opensource|tool_response"
"""Tags of other templates for reasoning or tool results."""
_PAIRS: Final = {
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<!--": "-->",
}
"""The same marks in other notations, and comments."""
_OTHERS = "user|system|developer|tool|ipython"
_TURN = (
    rf"<\|im_start\|>[ \t]{{0,2}}(?:{_OTHERS})\b|<\|start_header_id\|>[ \t]{{0,2}}(?:{_OTHERS})\b"
    rf"|<start_of_turn>[ \t]{{0,2}}(?:{_OTHERS})\b|<\|turn>(?:{_OTHERS})\b|\]~b\](?:{_OTHERS})\b"
    r"|<\|(?:user|system|observation|tool|im_user|im_system|user_token|system_token|message_user|message_system|message_tool)\|>"
    r"|<｜(?:user|system|tool▁outputs▁begin)｜>|\[INST\]|\[TOOL_RESULTS\]|\[SYSTEM_PROMPT\]"
    r"|<\|START_TOOL_RESULT\|>|<tool_response\|>|<end_function_response>"
)
TURN: Final = re.compile(_TURN, re.IGNORECASE)
"""Tokens that begin a user's, system or tool's turn in chat templates."""
_RESULT = r"</(?:tool_result|tool_response|(?:antml:|｜DSML｜)?function_results)>|## Return of functions\."
"""Ends of a tool's result, and how one begins in Kimi's template."""
CALL_HERE: Final = "\ue000"
"""A private-use character as the placeholder of a call in the prose."""
_NAMING: Final = " \t([{\"'“‘«:,"
"""Characters before a token that a sentence only names."""
_SPEAKER = re.compile(
    r"[ \t]*(?:#{1,6}[ \t]+)?[*_]{0,3}(?:(?P<person>user|human)|assistant|AI)[*_]{0,3}[:：](?P<words>[^\n]*)",
    re.IGNORECASE,
)
_LINE = re.compile(
    r"([ \t\r]*)(?:(>)|(\||[-*+•◦▪▫‣⁃∙●○■□–—](?=[ \t])|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{2,4})[.)](?=[ \t]))|(?=[^\s]))?"
)
_TOKEN = re.compile(
    rf"\n|`+|~~~+|{'|'.join(map(re.escape, (*_PAIRS, *_PAIRS.values())))}|<(?P<tag>{_TAGS})(?:\s[^<>\n]*)?>"
    rf"|(?P<turn>{_TURN})|(?P<result>{_RESULT})|<(?P<thought>{_THOUGHTS})>|</(?:{_TAGS}|{_THOUGHTS})>|\"\"\"|'''|[\"'“”„‟«»‘’‚‹›「」『』]",
    re.IGNORECASE,
)
_RUN = re.compile(r"`+|~+")
_SHOWN = re.compile(r"(?:^|[\s(\"“])\w\w")
_QUOTED_LEAD = re.compile(r"[> \t]*")
_FENCE_INFO = re.compile(r"[\w+\-.]*[ \t\r]*(?=\n|$)")
_TRIPLE: Final = frozenset({'"""', "'''"})
_OVER_PARAGRAPHS: Final = {"“": "”", "«": "»", "「": "」", "『": "』"}
"""Quotation marks that may span paragraphs, because opening and closing ones differ."""
_EXAMPLE = re.compile(
    r"(?:\b(?:for (?:example|instance)|examples?|e\.g\.|zum beispiel|beispiel|z\. ?b\.|(?:par )?exemple|(?:por )?ejemplo)"
    r"(?!\w)|例如|比如|示例|たとえば)[^\n]*[:：]\W*$|^\W*(?:for (?:example|instance)|e\.g\.)\W*$",
    re.IGNORECASE,
)
_FORM_SHOWN = re.compile(
    r"(?:\b(?:would|could|might) (?:look|be|read|take|have)\b|\b(?:looks? like|like this|as follows|such as(?=\W*$)|syntax is|format is)\b)"
    r"[^.!?\n]*[:：]\W*$",
    re.IGNORECASE,
)
_SUPPOSITION = re.compile(r"\b(?:would|could|might|may)\b[^.!?\n]*[:：]\W*$", re.IGNORECASE)
_OBJECTION = re.compile(
    r"\b(?:but|however|not|never|instead|rather|dangerous|only an example)\b|n[\'’]t\b", re.IGNORECASE
)
_RUN_WORDS = (
    r"(?:r[au]n(?:ning)?|call(?:ed|ing)?|execut(?:e|ed|ing)|ma(?:ke|de|king)|writ(?:e|ten|ing)|sen[dt](?:ing)?|us(?:e|ed|ing)|d(?:o|one|oing)"
    r"|issu(?:e|ed|ing)|invok(?:e|ed|ing)|perform(?:ed|ing)?|apply(?:ing)?)"
)
_REFUSED = re.compile(
    r"(?:\b(?:never|not|without|avoid|instead of|rather than)|n[\'’]t)[ \t]+(?:\w+[ \t]+){0,2}?"
    rf"{_RUN_WORDS}[ \t]+(?:this|that|these|those|the following|such|it|anything like)\b(?!.*\byet\b)[^.!?,;\n]*[:：]\W*$",
    re.IGNORECASE,
)
_DECLINED = re.compile(
    r"\bI(?:[\'’]m| am| will| would|[\'’]d| did| do| can| should| must)?(?:[ \t]*not|n[\'’]t|[ \t]+won[\'’]t|[ \t]+can[\'’]t|[ \t]+refuse to)"
    r"(?:[ \t]+going to)?[ \t]+(?:run|execute|call|make|send|perform|follow|obey|issue|invoke)[ \t]+(?:it|this|that|these|those|them|the)\b",
    re.IGNORECASE,
)
_PERMISSION = re.compile(
    r"\b(?:(?:do|would) you (?:want|like) me to|(?:shall|should|may|can) I)[ \t]+(?:\w+[ \t]+){0,2}?"
    rf"(?:{_RUN_WORDS}[ \t]+(?:it|this|that|these|them|so|the)(?:[ \t]+(?:tool[ \t]+)?(?:calls?|commands?|actions?))?"
    r"|proceed|go ahead)(?:[ \t]+(?:with[ \t]+(?:it|this|that)|now|anyway|for you))?[ \t]*[?:？：]",
    re.IGNORECASE,
)
_OBJECTION_WITHIN: Final = 200
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that began on an earlier line of the paragraph, and quotes a call if it closes after it."""

    ticks: frozenset[int] = frozenset()
    closers: str = ""
    ends: frozenset[str] = frozenset()
    """End marks that may close it any number of paragraphs later."""
    seen_ticks: frozenset[int] = frozenset()
    """Runs of backticks in the paragraph before the place, open or not."""

    def is_closed_by(self, rest: "ParagraphRest") -> str | None:
        if any(rest.ticks[size] for size in self.ticks) or any(rest.ticks[size] % 2 for size in self.seen_ticks):
            return INLINE_CODE
        if self.closers and not set(self.closers).isdisjoint(rest.quotes):
            return QUOTATION
        if INDENTED in self.ends and rest.has_words:
            return INDENTED
        closed = next((end for end in sorted(self.ends) if rest.closes(end)), None)
        return (
            None
            if closed is None
            else FENCED
            if closed in (_LONG, _LONG_ANY)
            else HTML
            if closed[-1] in ">]▷"
            else QUOTATION
        )


def is_only_shown(line: str, behind: str) -> bool:
    """True if a call between `line` and `behind` is only shown: the line introduces an example, or something that must not be
    run; or a format or a possibility, and the text behind is prose or an objection; or one of both asks for permission."""
    near = behind[:_OBJECTION_WITHIN]
    if _PERMISSION.search(near) or _DECLINED.search(near):
        return True
    if not line:
        return False
    if any(not _SHOWN.search(line, asked.end()) for asked in _PERMISSION.finditer(line)):
        return True
    if _EXAMPLE.search(line) or _REFUSED.search(line) or (behind and _FORM_SHOWN.search(line)):
        return True
    return bool(_SUPPOSITION.search(line) and _OBJECTION.search(near))


class QuoteTracker:
    """Follows prose, and tells how the place after it is quoted."""

    def __init__(self) -> None:
        self._has_text = False
        self._begins_line = True
        self._indent = 0
        self._is_line_blank = True
        self._last = "\n"
        """The last nonblank character, or a line break."""
        self._before = "\n"
        """The last character."""
        self._previous_blank = True
        self._line_kind = ""
        self._paragraph_kind = ""
        """How a mark on a line of this paragraph was quoted, which counts for the next lines of its call."""
        self._item_indent = 0
        """The column of the text of the current list item; 0 outside of lists."""
        self._is_indented = False
        """A mark of this paragraph is indented like code: it is code if prose follows it."""
        self._in_block_quote = False
        self._quote_line = False
        """The line begins with a block quote mark."""
        self._fences: list[str] = []
        self._fences_quoted = False
        """The fences are in a block quote, and end with it."""
        self._fence_line = ""
        """A run of fence characters on this line, whose effect is not known yet."""
        self._ticks = 0
        """The number of backticks that opened inline code on this line."""
        self._ticks_hold = False
        """A mark was in this inline code, so that it may continue over lines."""
        self._ticks_old = False
        """It continued over a line."""
        self._ticks_info = False
        """Only the name of a language follows it on its line, so that it is a fence at any place."""
        self._stale_ticks: set[int] = set()
        """Runs of backticks that may have opened inline code on an earlier line of the paragraph."""
        self._seen_ticks: set[int] = set()
        self._late_ends: dict[str, int] = {}
        """End marks of spans from earlier lines, which quote if they are closed."""
        self._quotes: list[str] = []
        self._quote_opened_last = False
        self._html_end = ""
        self._html_is_block = False
        """It began its line."""
        self._has_call = False
        self._turn_began = False
        """A token has begun a user's, system or tool's turn."""
        self._person_spoke = False
        """A line began with `User:` or the like."""
        self._is_person_line = False
        self._answer = ""
        """The text of an `Assistant:` line after that, a blank if it has none; empty if there is no such line."""

    @property
    def is_behind_invented_turn(self) -> bool:
        """True after a user's, system or tool's turn that the model itself wrote."""
        return self._turn_began or self._is_person_line or bool(self._answer)

    def feed(self, text: str) -> None:
        """Read prose that ends where a call may begin, or anywhere if none begins in it."""
        self._has_call = self._has_call or CALL_HERE in text
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

    def doubt_fences(self, *, any_number: bool = False) -> None:
        """Note that the state of fences is uncertain from here on: text is quoted if a fence closes after it, with
        `any_number` if there is any number of fences."""
        self._late_ends[_LONG_ANY if any_number else _LONG] = 1

    def quoted(self) -> str | None:
        """Return how the place after the fed text is quoted; None if it is not."""
        if self._fences or self._fence_line:
            return FENCED
        if self._html_end:
            return HTML
        if self._ticks:
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
                self._is_indented = True
            elif self._is_line_blank and self._indent >= self._item_indent > 0:
                self._paragraph_kind = LISTED
        return self._paragraph_kind or None

    def open_span(self) -> OpenSpan | None:
        """Return the span that is open at this place and may close after it. Call `quoted` first."""
        if not self._seen_ticks and not self._quotes and not self._late_ends and not self._is_indented:
            return None
        ends = frozenset((*self._late_ends, INDENTED) if self._is_indented else self._late_ends)
        return OpenSpan(frozenset(self._stale_ticks), "".join(self._quotes), ends, frozenset(self._seen_ticks))

    # -- reading

    def _plain(self, text: str) -> None:
        self._before = text[-1]
        if shown := text.rstrip(" \t\r"):
            self._is_line_blank = False
            self._has_text = True
            self._last = shown[-1]
            self._quote_opened_last = False
            if self._fence_line and self._fences:
                # A run with text after it closes nothing: it opens another fence inside.
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
        if not text.startswith("\n", found.end()):
            self._note_speaker(text, at)
        if self._fences_quoted and not quote:
            self._fences.clear()
            self._fences_quoted = False
        if self._fences or self._html_end:
            lead = _QUOTED_LEAD.match(text, found.end(1)) if self._fences_quoted else None
            run = _RUN.match(text, lead.end() if lead else found.end(1))
            top = self._fences[-1] if self._fences else ""
            if top and run and run.group()[0] == top[0] and len(run.group()) >= len(top):
                self._fence_line = run.group()
                self._is_line_blank = False
                return run.end()
            return found.end(1)
        self._quote_line = quote is not None
        if quote:
            self._in_block_quote = True
        elif kind:
            self._line_kind = TABLE if kind == "|" else LISTED
            self._item_indent = 0 if kind == "|" else self._indent + len(kind) + 1
        elif self._indent < self._item_indent and text[found.end()] != "\n":
            self._item_indent = 0
        if quote or kind:
            self._is_line_blank, self._has_text = False, True
            self._before = self._last = text[found.end() - 1]
        elif text.startswith("~~~", found.end(1)):
            run = _RUN.match(text, found.end(1))
            assert run is not None
            self._fence_line = run.group()
            return run.end()
        return found.end()

    def _note_speaker(self, text: str, at: int) -> None:
        """Look for a speaker's name at the beginning of a line that is not blank."""
        if self._answer.strip() and self._previous_blank:
            self._answer = ""  # prose that is no part of a transcript
        if self._fences or self._html_end or (spoken := _SPEAKER.match(text, at)) is None:
            self._answer = self._answer and "words"
        elif spoken["person"]:
            self._person_spoke = self._is_person_line = True
            self._answer = ""
        elif self._person_spoke:
            self._answer = spoken["words"].strip("*_ \t\r") or " "

    def _in_html(self, text: str, at: int) -> int:
        """Read up to the end of a quoting tag or comment; line breaks count."""
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
        begins_line = self._is_line_blank
        is_turn = found["turn"] or (found["result"] and self._has_call)
        if is_turn and not self._ticks and not self._quotes and (begins_line or self._before not in _NAMING):
            self._turn_began = True
        self._is_line_blank, self._has_text = False, True
        before, self._before, self._last = self._before, piece[-1], piece[-1]
        self._quote_opened_last = False
        if piece[0] == "`":
            self._tick(len(piece), begins_line, text, found.end())
        elif len(piece) == 1:
            if not self._ticks or self._ticks_old:
                self._quote(piece, before, text[found.end() : found.end() + 1])
        elif (found["tag"] or piece == "<!--") and (begins_line or not self._ticks):
            # A block begins a new context, also if the line before left something open.
            self._html_end, self._html_is_block = _end_of(found), begins_line
        elif (self._ticks and not self._ticks_old) or piece[0] == "~":
            return
        elif piece in _TRIPLE:
            if self._late_ends.pop(piece, None) is None:
                self._late_ends[piece] = 1
        elif end := _end_of(found):
            self._open_late(end)
        else:
            self._close_late(piece.lower())

    def _tick(self, size: int, begins_line: bool, text: str, end: int) -> None:
        self._seen_ticks.add(size)
        if size > 2 and begins_line:
            self._ticks_hold = self._ticks_old = False
            self._ticks, self._ticks_info = size, True
        elif self._ticks == size:
            self._ticks, self._ticks_hold, self._ticks_old = 0, False, False
        elif not self._ticks:
            if size in self._stale_ticks:
                self._stale_ticks.discard(size)
            else:
                self._ticks, self._ticks_info = size, bool(_FENCE_INFO.match(text, end))
                if size > 2 and self._ticks_info:
                    self.doubt_fences()

    def _open_fence(self, fence: str) -> None:
        self._fences_quoted = self._fences_quoted if self._fences else self._in_block_quote and self._quote_line
        self._fences.append(fence)

    def _open_late(self, end: str) -> None:
        self._late_ends[end] = self._late_ends.get(end, 0) + 1

    def _close_late(self, end: str) -> bool:
        count = self._late_ends.pop(end, 0)
        if count > 1:
            self._late_ends[end] = count - 1
        return count > 0

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
        if self._close_late(char):
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
                self._open_fence(self._fence_line)
            self._fence_line = ""
        elif self._ticks > 2 and self._ticks_info:
            self._open_fence("`" * self._ticks)
            self._ticks = 0
        elif self._ticks > 2:
            self.doubt_fences()
            self._ticks, self._ticks_hold = 0, False
        elif self._ticks and not self._ticks_hold:
            self._stale_ticks.add(self._ticks)
            self._ticks = 0
        self._ticks_old = self._ticks > 0
        if self._html_end and not self._html_is_block:
            self._open_late(self._html_end)
            self._html_end = ""
        self._line_kind = ""
        self._is_person_line = False
        if self._is_line_blank:
            self._in_block_quote = self._ticks_hold = self._ticks_old = False
            self._paragraph_kind = ""
            self._is_indented = False
            self._ticks = 0
            self._stale_ticks.clear()
            self._seen_ticks.clear()
            for closers in self._quotes:
                if closers in _OVER_PARAGRAPHS.values():
                    self._open_late(closers)
            self._quotes.clear()
        self._previous_blank = self._is_line_blank
        self._begins_line = self._is_line_blank = True
        self._indent = 0
        self._before = "\n"
        if self._last == "|":
            self._last = "\n"


class ParagraphRest:
    """The closing marks after a place, collected from the end of a text to its beginning: those in the rest of the paragraph,
    and for spans over paragraphs all of them."""

    def __init__(self) -> None:
        self.ticks: Counter[int] = Counter()
        self.quotes: set[str] = set()
        self.has_words = False
        self._ends: Counter[str] = Counter()

    def add_before(self, text: str) -> None:
        """Add a text before all that was added."""
        self.has_words = self.has_words or _SHOWN.search(text) is not None
        end = _BLANK_LINE.search(text)
        paragraph_ends = len(text)
        if end:
            self.ticks.clear()
            self.quotes.clear()
            paragraph_ends = end.start()
        for found in reversed([*_TOKEN.finditer(text)]):
            piece = found.group()
            is_near = found.start() < paragraph_ends
            if piece[0] == "`":
                if is_near:
                    self.ticks[len(piece)] += 1
                if len(piece) > 2:
                    self._ends[_LONG] += 1
            elif piece[0] == "~":
                self._ends[_LONG] += 1
            elif piece in _TRIPLE:
                self._ends[piece] += 1
            elif len(piece) > 1:
                opened = _end_of(found)
                self._count(opened or piece.lower(), opens=bool(opened))
            elif piece != "\n":
                if is_near and (piece != "'" or not text[found.end() : found.end() + 1].isalnum()):
                    self.quotes.add(piece)
                self._count(_OVER_PARAGRAPHS.get(piece, piece), opens=piece in _OVER_PARAGRAPHS)

    def _count(self, end: str, *, opens: bool) -> None:
        """Count an opening or closing mark; the largest count from here on is kept."""
        self._ends[end] = max(0, self._ends[end] - 1) if opens else self._ends[end] + 1

    def closes(self, end: str) -> bool:
        """True if this mark closes something from before the place. For fences if an odd number of them follows, because it is
        not known whether one is open."""
        if end == _LONG_ANY:
            return self._ends[_LONG] > 0
        count = self._ends[end]
        return count % 2 == 1 if end == _LONG else count > 0


_LONG: Final = "```"
_LONG_ANY: Final = "``````"


def _end_of(found: "re.Match[str]") -> str:
    """Return the closing mark for an opening one; empty for any other."""
    tag = found["tag"] or found["thought"]
    return f"</{tag.lower()}>" if tag else _PAIRS.get(found.group().lower(), "")
