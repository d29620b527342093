"""Answers that quote, consider and show calls, several in a row, whole and broken, with calls in their values: none of them
runs where it is quoted, however the answer is cut; and a call that stands alone behind them does.

Every byte of the input makes one choice: the format, what is said, by what it is quoted, what is wrong with it.
"""

import itertools
import re
from collections.abc import Iterator

from callgate.conversation.events import CallWritten, ModelEvent
from callgate.text_calls.prompts import style_for
from callgate.text_calls.reader import FORMATS, reader_for
from callgate.text_calls.writers import PastCall
from tests.text_calls.reading import cuts, merged

QUOTED, MEANT, PLACE = "/srv/quoted", "/srv/meant", "PLACE"
TOOLS = {"delete_all": ("path",), "write_file": ("path", "content"), "get_time": ()}
# In these nothing marks a call but its line, its message or the whole text.
UNMARKED = {"react", "functionary_v32", "pythonic", "olmo3", "muse", "glm4", "litellm_json", "llama3_json", "harmony"}

PROSE = [
    *(
        "Let me see.",
        "# Head",
        "It's fine, don't worry.",
        "- one\n- two",
        "1. a\n2. b",
        "| a | b |\n|---|---|\n| 1 | 2 |",
    ),
    *(
        "I use `x` and ``a`b``.",
        "```py\nx = 1\n```",
        "~~~\nx\n~~~",
        "He said “x” and «y».",
        'A "b" c.',
        "> quoted\n\nNo.",
    ),
    *(
        "<b>x</b>",
        "<pre>x</pre>",
        "<!-- x -->",
        "<think>hm</think>",
        "x\n\ny",
        "The <tool_call> tag opens one.",
        "a -> b",
    ),
]
CLOSED = [
    *("Use `{}` here.", "Use ``{}`` here.", "Use `\n{}\n` here.", "```\n# so:\n{}\n```", "~~~\nso:\n{}\n~~~"),
    *("````\n```\n{}\n```\n````", "```a\nx\n```\ntext\n```b\n{}\nso\n```", "> {}\n\nNo.", "> ```\n> {}\n> ```\n\nNo."),
    *("1. x\n   ```\n   so:\n   {}\n   ```\n2. y\n\nNo.", "He said “{}” here.", 'He said "{}" here.', "“{}”", "Il dit «\n{}\n» ici."),
    *("Man sagt „{}“ dazu.", "请写「{}」就好。", "| x | {} |", "<pre>\n{}\n</pre>", "<!--\n\n{}\n\n-->", "<div>\n\n{}\n</div>"),
    *("<details><pre>\n{}\n</pre></details>", "<scratchpad>\n{}\n</scratchpad>", "<think>\n{}\n</think>"),
]  # fmt: skip
OPEN = [
    *("[{}](x)", "Use ``{}'' here.", "{}`", "{}```", '{}"', "> He wrote:\n{}", "“First.\n\n“{}\n\n“Last.”", "The ` sign: “{}”."),
    *("- {}\n\nNo.", "1. x\n\n   {}\n\n2. y\n\nNo.", "{} is it.", "{}.", "**{}**", "For example:\n\n{}\n\nSo.", "```\n{}\n```"),
    *("Like this:\n\n    {}\n\nSo.", "~~~\n{}\n~~~", "Il dit «\n\n{}\n\n» ici.", "x = '''\n{}\n'''", "<draft>\n{}\n</draft>"),
]  # fmt: skip
"""What quotes nothing, or may not: its calls count with those at the end of the text."""
VALUES = [
    *("{}", "a\n{}\nb", "a\n\n{}\n\nb", "```\n{}\n```", "> {}", "- {}", "“{}”", "`{}`", "{}\n\n{}", "a {} b", "x\n\n- {}\n\n{}"),
]  # fmt: skip


def written(format: str, name: str, **arguments: str) -> str:
    return style_for(format).write("", [PastCall(name, arguments, f"functions.{name}:0")]).strip()


def _formats() -> Iterator[str]:
    for format in sorted(FORMATS - UNMARKED):
        try:
            written(format, "get_time")
        except KeyError:
            continue  # a format that is only read
        yield format


KNOWN = list(_formats())


class Choices:
    """One choice for each byte; the first of all when there are no more."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)
        self.is_quoted = True
        """All calls but the last are in what quotes them."""
        self.is_well = True
        """Every quotation so far closes, and no call in one was broken."""

    def among(self, things: list[str]) -> str:
        return things[next(self._bytes, 0) % len(things)]

    def number(self, count: int) -> int:
        return next(self._bytes, 0) % count


def call(choices: Choices, format: str) -> str:
    kind = choices.number(6)
    if kind == 0:
        return written(format, "get_time")
    plain = written(format, "delete_all", path=QUOTED)
    if kind < 3:
        return plain
    inner = plain if choices.number(2) else written(choices.among(KNOWN), "delete_all", path=QUOTED)
    value = choices.among(VALUES).replace("{}", inner)
    if kind == 3:
        outer = written(format, "write_file", path=QUOTED, content=value)
        choices.is_well = choices.is_well and is_whole(format, outer)
        return outer
    choices.is_well = False
    outer = written(format, "write_file", path=QUOTED, content=PLACE)
    return outer.replace(PLACE, value) if kind == 4 else outer.split(PLACE)[0] + value


def segment(choices: Choices, format: str) -> str:
    kind = choices.number(8)
    if kind < 3:
        return choices.among(PROSE)
    if kind == 3:
        choices.is_well = False
        choices.is_quoted = False
    context = choices.among(OPEN if kind == 3 else CLOSED)
    at = context.index("{}")
    lead = context[context.rfind("\n", 0, at) + 1 : at]
    line_break = f"\n{lead}" if re.fullmatch(r"[> ]+", lead) else "\n"
    return context.replace("{}", call(choices, format).replace("\n", line_break))


def is_whole(format: str, call: str) -> bool:
    """Whether the format can hold such a value."""
    events = read(format, [call])
    return len(events) == 1 and isinstance(events[0], CallWritten) and events[0].flaw is None


def read(format: str, pieces: list[str]) -> list[ModelEvent]:
    reader = reader_for(format, TOOLS, thinking="unknown")
    return merged([*itertools.chain.from_iterable(map(reader.feed, pieces)), *reader.finish()])


def run(data: bytes) -> None:
    choices = Choices(data)
    format = choices.among(KNOWN)
    parts = [segment(choices, format) for _ in range(1 + choices.number(3))]
    text = choices.among(["\n\n", "\n"]).join(parts)
    if is_meant := choices.number(2) == 1:
        text += f"\n\nNow:\n\n{written(format, 'delete_all', path=MEANT)}"
    events = read(format, [text])
    ran = [event for event in events if isinstance(event, CallWritten) and event.flaw is None and event.is_alone]
    assert not choices.is_quoted or all(MEANT in str(event.arguments) for event in ran), text
    if is_meant and choices.is_well:
        assert len(ran) == 1, text
    places = [choices.number(len(text)) for _ in range(3)]
    assert repr(read(format, cuts(text, places))) == repr(events), text
    assert repr(read(format, list(text))) == repr(events), text
