"""The formats, each in a few lines: its marks, and which grammar reads what they open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from app.dialects.bare_json import read_bare_json
from app.dialects.json_calls import CallObjects, Ends
from app.dialects.tag_calls import Tags, Vocabulary, attributes
from app.dialects.talk import Talk
from app.dialects.tape import Steps

Block = Callable[[Talk, str], Steps[bool]]
"""Reads what a mark opened. False: it was no opening after all, the mark is talk and nothing more was read."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a format is read."""

    read: Callable[[Talk], Steps[None]]
    channels: Mapping[str, str] = field(default_factory=dict)
    """The format's own reasoning channels, with what closes them."""
    dropped: tuple[str, ...] = ()
    """Tokens that mean nothing to a user."""


def marked(blocks: Mapping[str, Block], **more: object) -> Grammar:
    """Prose in which certain marks open something."""

    def read(talk: Talk) -> Steps[None]:
        prose = talk.prose(*blocks)
        while (mark := (yield from prose.step())) is not None:
            if mark and not (yield from blocks[mark](talk, mark)):
                talk.say(mark)

    return Grammar(read, **more)  # type: ignore[arg-type]


def tags(words: Vocabulary, *, bare: bool = False) -> Grammar:
    grammar = Tags(words)
    blocks: dict[str, Block] = dict.fromkeys(words.wrappers, grammar.wrapped)
    if bare:
        blocks[words.call] = lambda talk, _: grammar.bare(talk)
    return marked(blocks)


def prefixed(prefix: str, wrappers: dict[str, str], *, typed: bool = False) -> Vocabulary:
    return Vocabulary(
        call=f"<{prefix}invoke",
        call_end=f"</{prefix}invoke>",
        value=f"<{prefix}parameter",
        value_end=f"</{prefix}parameter>",
        head=attributes,
        wrappers=wrappers,
        typed=typed,
    )


def call_objects(objects: CallObjects, ends: Ends) -> Block:
    def block(talk: Talk, _: str) -> Steps[bool]:
        yield from objects.read(talk, ends)
        return True

    return block


ANTML: Final = "antml" + ":"

HERMES: Final = call_objects(CallObjects(), Ends(("</tool_call>",)))

GRAMMARS: Final[Mapping[str, Grammar]] = {
    "xml": tags(prefixed("", {"<function_calls>": "</function_calls>"}), bare=True),
    "antml": tags(
        prefixed(
            ANTML,
            {
                f"<{ANTML}function_calls>": f"</{ANTML}function_calls>",
                "<function_calls>": "</function_calls>",
            },
        ),
        bare=True,
    ),
    "hermes": marked({"<tool_call>": HERMES}),
    "litellm_json": Grammar(read_bare_json),
}
