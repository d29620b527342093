"""Reads calls written as tags: `<invoke name="N"><parameter name="P">V</parameter></invoke>` and the like.

Values are raw text up to their own closing tag; other tags inside are data, except for the opening tag of another of the
tool's parameters, which shows that the value was not closed, so that the call is broken. A call needs its own end tag (or
`<invoke name="N"/>`), since more parameters could follow. The names of the tags are a `Vocabulary` of one grammar.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from callgate.calls.json_text import ARGUMENTS
from callgate.calls.names import resolve_name
from callgate.calls.states import Flaw
from callgate.conversation.events import CallWritten
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.json_calls import Ends, arguments_written, broken_at, cut_off, read_body
from callgate.text_calls.json_scan import JsonScan, State
from callgate.text_calls.text_cursor import Sink, Steps, Tail, TextCursor, drop, finder
from callgate.untrusted.doors import open_text
from callgate.untrusted.readers import read_leniently

HEAD_LIMIT = 512
"""The longest head of a tag (name and attributes)."""

CDATA: Final = "<![CDATA["
CDATA_END: Final = "]]>"
COMMENT: Final = "<!--"
COMMENT_END: Final = "-->"

_HEAD_STARTS = frozenset(" \t\r\n>/")
"""Characters after a tag's name; any other makes it a longer name."""

_BLANKS = re.compile(r"[ \t\r\n]*")
_TOKEN_BLANKS = re.compile(r"[ \t\r\nĠ]*")
_ATTRIBUTE_NAME = re.compile(r"[^\s=<>/\"']*")
_ENTITIES = (("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))
_IN_DOUBLE = re.compile(r'[^"]*')
_IN_SINGLE = re.compile(r"[^']*")
_WRAPPED = re.compile(r"\r?\n(.*?)\r?\n", re.DOTALL)
_KEY = re.compile(r"[^<\r\n]*")
_WORD = re.compile(r"[\w.:\-]+")
_WORDS_TO_NAME = 3
"""The name of a call is within so many words after its opening."""
_AFTER_EQUALS = re.compile(r"[^<>\r\n]*")


@dataclass(frozen=True, slots=True)
class TagHead:
    """The rest of an opening tag after its name, as far as it could be read."""

    attributes: dict[str, str]
    is_whole: bool
    is_cut: bool = False
    """The text ended in it."""
    is_closed: bool = False
    """It is self-closing."""
    text: str = ""
    """The text of the head, if it is whole."""

    @property
    def name(self) -> str | None:
        return self.attributes.get("name")


TagHeadReader = Callable[[TextCursor], Steps[TagHead]]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tags of one format. Opening tags are written up to their head."""

    call: str
    call_end: str
    value: str
    value_end: str
    head: TagHeadReader
    wrappers: dict[str, str] = field(default_factory=dict)
    """Wrapper tags and their ends."""
    value_head: TagHeadReader | None = None
    """Set where the head of a parameter has another format than that of a call."""
    typed: tuple[str, str] | None = None
    """The attribute for the type of a parameter, text or JSON, and its value for text. A call of such a format may also be
    one JSON object."""
    name_end: str | None = None
    """The optional mark after a name that is the text after its tag."""
    own_lines: bool = False
    """Values are on lines of their own: a line break at either end is not part of them."""
    key_end: str = ""
    """The mark after the name of a parameter, where the name is text after the opening tag."""
    quoted: bool = False
    """Strings may be written as JSON strings."""
    undeclared_json: bool = False
    """JSON text is parsed in parameters without a schema."""
    rename: Callable[[str, Collection[str]], str] | None = None
    """Returns the tool for a name, given the names of the offered tools."""

    def strays(self) -> tuple[str, ...]:
        """Return the end tags that may follow a call whose wrapper was not opened."""
        return tuple(dict.fromkeys(self.wrappers.values()))


def attributes_up_to(
    end: str, name_key: str = "name", *, escaped: bool = False, run_together: bool = False
) -> TagHeadReader:
    """Make a reader of ` name="N" other='…'>`, with optional blanks around `=`. It reads all of the head or nothing.

    `escaped`: values have XML entities. `run_together`: the blank before the first attribute may be missing, or be the
    character that some tokenizers write for it.
    """

    def named(values: dict[str, str]) -> dict[str, str]:
        if name_key in values:
            return {**values, "name": values[name_key]}
        return values

    def read(cursor: TextCursor) -> Steps[TagHead]:
        values: dict[str, str] = {}
        look = _Ahead(cursor)
        while True:
            blanks = yield from look.run(_TOKEN_BLANKS if run_together else _BLANKS)
            char = yield from look.char()
            if char in (end[0], "/"):
                ended = yield from look.mark(end, f"/{end}")
            else:
                ended = None
            if ended:
                return TagHead(named(values), is_whole=True, is_closed=ended != end, text=look.accept(0))
            is_cut = look.is_cut
            if blanks or (run_together and not values):
                key = yield from look.run(_ATTRIBUTE_NAME)
            else:
                key = ""
            if not key:
                return TagHead(named(values), is_whole=False, is_cut=is_cut)
            yield from look.run(_BLANKS)
            if (yield from look.char()) != "=":
                return TagHead(values, is_whole=False, is_cut=look.is_cut)
            look.skip(1)
            yield from look.run(_BLANKS)
            quote = yield from look.char()
            if quote not in ("'", '"') or not quote:
                return TagHead(values, is_whole=False, is_cut=look.is_cut)
            look.skip(1)
            text = yield from look.run(_IN_DOUBLE if quote == '"' else _IN_SINGLE)
            if not (yield from look.char()):
                return TagHead(values, is_whole=False, is_cut=look.is_cut)
            look.skip(1)
            for entity, char in _ENTITIES if escaped else ():
                text = text.replace(entity, char)
            values.setdefault(key, text)

    return read


attributes: Final = attributes_up_to(">")


def after_equals(cursor: TextCursor) -> Steps[TagHead]:
    """Read `N>` after `<function=`, all of it or nothing."""
    look = _Ahead(cursor)
    name = yield from look.run(_AFTER_EQUALS)
    if (yield from look.char()) != ">":
        return TagHead({"name": name.strip()}, is_whole=False, is_cut=look.is_cut)
    return TagHead({"name": name.strip()}, is_whole=True, text=look.accept(1))


def key_up_to(end: str, value: str | None = None) -> TagHeadReader:
    """Make a reader of `K</arg_key><arg_value>` after `<arg_key>`."""

    def read(cursor: TextCursor) -> Steps[TagHead]:
        pieces: list[str] = []
        if (yield from cursor.until(finder((end,)), pieces.append)) is None:
            return TagHead({}, is_whole=False, is_cut=True)
        name = {"name": "".join(pieces).strip()}
        if value is None:
            return TagHead(name, is_whole=True)
        yield from cursor.space()
        opened = yield from cursor.one_of((value,))
        return TagHead(name, is_whole=opened is not None, is_cut=cursor.ended and opened is None)

    return read


def prefixed(
    prefix: str, wrappers: dict[str, str], *, typed: tuple[str, str] | None = None, own_lines: bool = False
) -> Vocabulary:
    """Make the vocabulary of `<invoke name="N"><parameter name="P">`, with a prefix for each tag."""
    return Vocabulary(
        call=f"<{prefix}invoke",
        call_end=f"</{prefix}invoke>",
        value=f"<{prefix}parameter",
        value_end=f"</{prefix}parameter>",
        head=attributes,
        wrappers=wrappers,
        typed=typed,
        own_lines=own_lines,
    )


NAME: Final = re.compile(r"[^\s<]*")


@dataclass(frozen=True, slots=True)
class Tags:
    """The grammar of calls in wrappers, or bare."""

    vocabulary: Vocabulary

    def wrapped(self, out: EventSink, wrapper: str) -> Steps[bool]:
        """Read a wrapper after its opening tag. Text between its calls is ignored; its end may be missing."""
        vocabulary = self.vocabulary
        cursor = out.cursor
        end = vocabulary.wrappers[wrapper]
        marks = finder((vocabulary.call, end, COMMENT))
        found_any = False
        while True:
            tail = Tail()
            mark = yield from cursor.until(marks, tail)
            if mark == COMMENT:
                yield from cursor.until(finder((COMMENT_END,)))
            elif mark == vocabulary.call:
                found_any = (yield from self._wrapped_call(out)) or found_any
            elif mark == end:
                return True
            else:
                began_another = len(tail.text) > 1 and vocabulary.call.startswith(tail.text)
                if began_another or not found_any:
                    out.add_call(cut_off())
                return True

    def bare(self, out: EventSink) -> Steps[bool]:
        """Read a call in prose after its opening tag. False: it is no tag, and nothing more was read."""
        start = yield from self.vocabulary.head(out.cursor)
        if not start.is_whole or start.name is None:
            return (yield from self._unfinished_tag(out, start))
        yield from self._named(out, start)
        yield from self.swallow_strays(out)
        return True

    def bare_if_offered(self, out: EventSink) -> Steps[bool]:
        """The same for a common tag, which counts only with the name of an offered tool."""
        start = yield from self.vocabulary.head(out.cursor)
        if not start.is_whole or start.name is None:
            return (yield from self._unfinished_tag(out, start))
        if resolve_name(start.name, out.tools) is None:
            out.add_text(self.vocabulary.call + start.text)
            return True
        yield from self._named(out, start)
        yield from self.swallow_strays(out)
        return True

    def in_row(self, out: EventSink) -> Steps[bool]:
        """Read a wrapper with only calls in it, after its opening tag."""
        cursor = out.cursor
        yield from cursor.space()
        if (yield from cursor.one_of((self.vocabulary.call,))) is None:
            # Skip other text in the wrapper, up to the wrapper's end.
            if cursor.ends_within(self.vocabulary.call):
                broken = cut_off()
            else:
                ended = yield from cursor.until(finder(self.vocabulary.strays()))
                broken = broken_at(ended)
            out.add_call(broken)
            return True
        while True:
            yield from self._wrapped_call(out)
            blanks: list[str] = []
            yield from cursor.space(blanks.append)
            if (yield from cursor.one_of((self.vocabulary.call,))) is None:
                yield from self.swallow_strays(out, *blanks)
                return True

    def named_by_text(self, out: EventSink) -> Steps[bool]:
        """Read a call whose name is the text after its tag, up to a blank or the next tag."""
        cursor = out.cursor
        yield from cursor.space()
        name = yield from cursor.run(NAME, HEAD_LIMIT)
        if name is None:
            out.add_call((yield from self._broken(cursor, None)))
        elif not (yield from cursor.peek()):
            out.add_call(cut_off())
        elif not name:
            out.add_call((yield from self._broken(cursor, None, Flaw.MISSING_NAME)))
        else:
            if self.vocabulary.name_end:
                yield from cursor.space()
                yield from cursor.one_of((self.vocabulary.name_end,))
            out.add_call((yield from self.body(out, name)))
        return True

    def body(self, out: EventSink, name: str) -> Steps[CallWritten]:
        """Read the parameters of a call up to its end tag."""
        vocabulary = self.vocabulary
        cursor = out.cursor
        values = Values(name, vocabulary)
        while True:
            yield from cursor.space()
            mark = yield from cursor.one_of((vocabulary.call_end, vocabulary.value))
            if mark == vocabulary.call_end:
                return values.written()
            if mark == vocabulary.value:
                start = yield from (vocabulary.value_head or vocabulary.head)(cursor)
                if start.is_whole and start.name and (key := start.name.strip()):
                    tool = resolve_name(name, out.tools)
                    if tool is not None and isinstance(out.tools, Mapping):
                        parameters = out.tools[tool.name]
                    else:
                        parameters = ()
                    text = "" if start.is_closed else (yield from self._value(cursor, values, key, parameters))
                    if text is None:
                        inside: list[str] = []
                        broken = yield from self._broken(cursor, name, sink=inside.append, inside=values.open_calls)
                        self._note_calls_in(out, "".join(inside))
                        return broken
                    values.add(key, text, start.attributes)
                    continue
            elif vocabulary.typed and not values and (yield from cursor.peek()) == "{":
                body = yield from read_body(cursor, Ends((self.vocabulary.call_end,)))
                if body.mark is None:
                    return cut_off(name)
                return arguments_written(name, body)
            return (yield from self._broken(cursor, name))

    def swallow_strays(self, out: EventSink, *blanks: str) -> Steps[None]:
        """Read and drop end tags of a wrapper that was not opened, or is closed twice."""
        pieces = list(blanks)
        while True:
            yield from out.cursor.space(pieces.append)
            if (yield from out.cursor.one_of(self.vocabulary.strays())) is None:
                out.add_text("".join(pieces))
                return
            pieces.clear()

    def _unfinished_tag(self, out: EventSink, start: TagHead) -> Steps[bool]:
        """Read a tag of an offered tool that only lacks its `>`, as a broken call."""
        if start.is_cut or start.name is None or resolve_name(start.name, out.tools) is None:
            if start.text:
                out.add_text(self.vocabulary.call + start.text)
            return bool(start.text)
        out.add_call((yield from self._broken(out.cursor, start.name)))
        yield from self.swallow_strays(out)
        return True

    def _named(self, out: EventSink, start: TagHead) -> Steps[None]:
        assert start.name is not None
        if self.vocabulary.rename:
            name = self.vocabulary.rename(start.name, out.tools)
        else:
            name = start.name
        body = self.body(out, name)
        out.add_call(Values(name, self.vocabulary).written() if start.is_closed else (yield from body))

    def _value(self, cursor: TextCursor, values: "Values", own: str, parameters: Collection[str]) -> Steps[str | None]:
        """Read a raw value up to its closing tag; None if it is not closed, or another parameter begins before that: at the
        beginning of a line, or inside another call, whose closing tag would be taken for this one's. A value that is one CDATA
        section is the content of that."""
        vocabulary = self.vocabulary
        pieces = list[str]()
        yield from _line_break(cursor, pieces.append)
        if (yield from cursor.one_of((CDATA,))) is not None:
            inside: list[str] = []
            if (yield from cursor.until(finder((CDATA_END,)), inside.append)) is None:
                return None
            after: list[str] = []
            yield from _line_break(cursor, after.append)
            if (yield from cursor.one_of((vocabulary.value_end,))) is not None:
                return "".join(inside)
            pieces += [CDATA, *inside, CDATA_END, *after]
        marks = finder((vocabulary.value_end, vocabulary.value, vocabulary.call, vocabulary.call_end))
        has_call = False
        while (mark := (yield from cursor.until(marks, pieces.append))) is not None and mark != vocabulary.value_end:
            shown = next((text for piece in reversed(pieces) if (text := piece.rstrip(" \t\r"))), "\n")
            begins_line = shown[-1] == "\n"
            pieces.append(mark)
            if mark in (vocabulary.call, vocabulary.call_end):
                has_call = has_call or mark == vocabulary.call
                values.open_calls = max(0, values.open_calls + (1 if mark == vocabulary.call else -1))
                continue
            key = yield from self._key_within(cursor, pieces)
            if has_call or key is None:
                return None
            if key and key != own and values.may_begin(key, parameters):
                if begins_line:
                    return None
                values.swallowed.add(key)
        text = "".join(pieces)
        if mark is None:
            return None
        wrapped = _WRAPPED.fullmatch(text) if vocabulary.own_lines else None
        if wrapped:
            return wrapped.group(1)
        return text

    def _key_within(self, cursor: TextCursor, pieces: list[str]) -> Steps[str | None]:
        """Return the name of a parameter whose tag was just read in a value; empty if it is no tag, None if the text ends in
        it."""
        if not self.vocabulary.key_end:
            head = yield from (self.vocabulary.value_head or self.vocabulary.head)(cursor)
            pieces.append(head.text)
            if head.is_cut:
                return None
            return (head.name or "").strip()
        look = _Ahead(cursor)
        key = yield from look.run(_KEY)
        is_whole = (yield from look.mark(self.vocabulary.key_end)) is not None
        if look.is_cut:
            return None
        if is_whole:
            return key.strip()
        return ""

    def _wrapped_call(self, out: EventSink) -> Steps[bool]:
        start = yield from self.vocabulary.head(out.cursor)
        if start.is_whole and start.name is not None:
            yield from self._named(out, start)
            return True
        if start.is_cut:
            out.cursor.at = len(out.cursor.text)
            out.add_call(cut_off())
            return True
        is_word = self.vocabulary.call[-1].isalnum()
        if is_word and not start.is_whole and (yield from out.cursor.peek()) not in _HEAD_STARTS:
            return False  # stray text such as <invoker>
        out.add_call((yield from self._broken(out.cursor, None, Flaw.MISSING_NAME if start.is_whole else None)))
        return True

    def _broken(
        self, cursor: TextCursor, name: str | None, flaw: Flaw | None = None, *, sink: Sink = drop, inside: int = 0
    ) -> Steps[CallWritten]:
        """Read the rest of a broken call, up to its next end tag, or, with `inside` open calls in it, the one after theirs."""
        vocabulary = self.vocabulary
        marks = finder((vocabulary.call_end, vocabulary.call) if inside else (vocabulary.call_end,))
        while (ended := (yield from cursor.until(marks, sink))) is not None:
            if ended == vocabulary.call:
                inside += 1
            elif inside:
                inside -= 1
            else:
                break
            sink(ended)
        return broken_at(ended, name, flaw or Flaw.INVALID_MARKUP)

    def _note_calls_in(self, out: EventSink, text: str) -> None:
        """Report calls inside a broken one, for the log."""
        for part in text.split(self.vocabulary.call)[1:]:
            vocabulary = _WORD.findall(part, 0, HEAD_LIMIT)[:_WORDS_TO_NAME]
            if (name := next((word for word in vocabulary if resolve_name(word, out.tools)), None)) is not None:
                out.note_nested(name)


class Values:
    """Collects the parameters of one call."""

    def __init__(self, name: str, vocabulary: Vocabulary) -> None:
        self._name = name
        self._words = vocabulary
        self._texts: dict[str, str] = {}
        self._json: set[str] = set()
        self._said_text: set[str] = set()
        self._flaw: Flaw | None = None
        self.open_calls = 0
        """The number of calls that began within a value and did not end there."""
        self.swallowed: set[str] = set()
        """Parameters whose tags are in a value, and that were not given before."""

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, key: str, text: str, attributes: Mapping[str, str]) -> None:
        if key in self._texts:
            self._flaw = Flaw.INVALID_MARKUP
            return
        self._texts[key] = _unquoted(text) if self._words.quoted else text
        attribute, means_text = self._words.typed or ("", "")
        if attribute not in attributes:
            return
        if attributes[attribute] == means_text:
            self._said_text.add(key)
        else:
            self._json.add(key)
            if not _is_json(text):
                self._flaw = self._flaw or Flaw.INVALID_JSON

    def may_begin(self, key: str, parameters: Collection[str]) -> bool:
        """True if the tag of this parameter may really begin one: it is new, and the tool's, as far as that is known."""
        return key not in self._texts and (not parameters or key in parameters)

    def written(self) -> CallWritten:
        if not self.swallowed <= self._texts.keys():
            # It was not given elsewhere, so that the value before it was not closed.
            self._flaw = self._flaw or Flaw.INVALID_MARKUP
        only_text = len(self._texts) > len(self._json) + len(self._said_text)
        arguments: str | dict[str, str] = dict(self._texts)
        if self._json:  # one JSON object with the values as written, for `calls.arguments` to parse
            members = (
                f"{json.dumps(key)}:{text if key in self._json else json.dumps(text)}"
                for key, text in self._texts.items()
            )
            arguments = "{" + ",".join(members) + "}"
        flaw = self._flaw or (None if self._name.strip() else Flaw.MISSING_NAME)
        return CallWritten(
            self._name,
            arguments,
            flaw=flaw,
            only_text=only_text or not self._texts,
            undeclared_json=self._words.undeclared_json,
            from_text=True,
        )


class _Ahead:
    """Looks ahead on a cursor without reading, at most `HEAD_LIMIT` characters, so that a text that is no head can be read as
    something else."""

    def __init__(self, cursor: TextCursor) -> None:
        self._cursor = cursor
        self._offset = 0
        self.is_cut = False

    def char(self) -> Steps[str]:
        """Return the next character; empty at the limit, and at the end of the text."""
        if self._offset >= HEAD_LIMIT:
            return ""
        char = yield from self._cursor.peek(self._offset)
        self.is_cut = not char
        return char

    def run(self, pattern: "re.Pattern[str]") -> Steps[str]:
        first = self._offset
        while (yield from self.char()):
            start = self._cursor.at + self._offset
            limit = self._cursor.at + HEAD_LIMIT
            match = pattern.match(self._cursor.text, start, limit)
            assert match is not None, "a starred class matches anywhere"
            self._offset += match.end() - start
            if match.end() < min(len(self._cursor.text), limit):
                break
        at = self._cursor.at
        return self._cursor.text[at + first : at + self._offset]

    def mark(self, *marks: str) -> Steps[str | None]:
        """Skip the next mark, if it is one of these."""
        for mark in marks:
            for place, expected in enumerate(mark):
                char = yield from self._cursor.peek(self._offset + place)
                self.is_cut = not char
                if char != expected:
                    break
            else:
                self._offset += len(mark)
                return mark
        return None

    def skip(self, count: int) -> None:
        self._offset += count

    def accept(self, count: int) -> str:
        """Read all that was skipped, and `count` more characters."""
        start = self._cursor.at
        self._cursor.at += self._offset + count
        return self._cursor.text[start : self._cursor.at]


def _line_break(cursor: TextCursor, sink: Sink) -> Steps[None]:
    mark = yield from cursor.one_of(("\r\n", "\n"))
    if mark:
        sink(mark)


def _unquoted(text: str) -> str:
    """Decode a JSON string; return any other text as it is."""
    try:
        value = read_leniently(open_text(text, ARGUMENTS)) if text.strip().startswith('"') else None
    except ValueError:
        return text
    if isinstance(value, str):
        return value
    return text


def _is_json(text: str) -> bool:
    """True for exactly one JSON value and blanks, strict or not."""
    scan = JsonScan()
    end = scan.feed(text, 0)
    scan.finish()
    return scan.state is State.CLOSED and not scan.flawed and not text[end:].strip()
