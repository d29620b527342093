"""The formats, each in a few lines: its marks, and which grammar reads what they open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from callgate.text_calls import gemma, headed
from callgate.text_calls.bare_json import read_bare_json
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.harmony import read_harmony
from callgate.text_calls.json_calls import CallObjects, Ends
from callgate.text_calls.pythonic import END_MARKS, read_pythonic
from callgate.text_calls.react import read_react
from callgate.text_calls.tag_calls import Tags, Vocabulary, after_equals, arg_key, attributes
from callgate.text_calls.text_cursor import Steps

Block = Callable[[EventSink, str], Steps[bool]]
"""Reads what a mark opened. False: it was no opening after all, the mark is prose and nothing more was read."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a format is read."""

    read: Callable[[EventSink], Steps[None]]
    channels: Mapping[str, str] = field(default_factory=dict)
    """The format's own reasoning channels, with what closes them."""
    dropped: tuple[str, ...] = ()
    """Tokens that mean nothing to a user."""


def marked(
    blocks: Mapping[str, Block], *, channels: Mapping[str, str] | None = None, dropped: tuple[str, ...] = ()
) -> Grammar:
    """Prose in which certain marks open something."""

    def read(out: EventSink) -> Steps[None]:
        prose = out.prose(*blocks)
        while (mark := (yield from prose.step())) is not None:
            if mark and not (yield from blocks[mark](out, mark)):
                out.add_text(mark)

    return Grammar(read, channels or {}, dropped)


def tags(words: Vocabulary, *, bare: bool = False) -> Grammar:
    grammar = Tags(words)
    blocks: dict[str, Block] = dict.fromkeys(words.wrappers, grammar.wrapped)
    if bare:
        blocks[words.call] = lambda out, _: grammar.bare(out)
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
    def block(out: EventSink, _: str) -> Steps[bool]:
        yield from objects.read(out, ends)
        return True

    return block


def deepseek(call: Callable[[EventSink], Steps[bool]]) -> Grammar:
    return marked(
        {
            headed.DEEPSEEK_CALLS: lambda out, _: headed.section(out, headed.DEEPSEEK_CALL, headed.DEEPSEEK_CALLS_END),
            headed.DEEPSEEK_CALL: lambda out, _: call(out),
        },
        dropped=(headed.DEEPSEEK_CALLS_END, "<｜end▁of▁sentence｜>"),
    )


ANTML: Final = "antml" + ":"

HERMES: Final = call_objects(CallObjects(), Ends(("</tool_call>",)))

DSML: Final = "｜DSML｜"

QWEN: Final = Vocabulary(
    call="<function=",
    call_end="</function>",
    value="<parameter=",
    value_end="</parameter>",
    head=after_equals,
    wrappers={"<tool_call>": "</tool_call>"},
)

GLM: Final = Vocabulary(
    call="<tool_call>",
    call_end="</tool_call>",
    value="<arg_key>",
    value_end="</arg_value>",
    head=attributes,
    value_head=arg_key,
)


def qwen3_coder(out: EventSink, mark: str) -> Steps[bool]:
    """Tags, or JSON in the same wrapper."""
    yield from out.cursor.space()
    if (yield from out.cursor.peek()) in ("{", "[", "`"):
        return (yield from HERMES(out, mark))
    return (yield from Tags(QWEN).in_row(out))


def phi4(out: EventSink, mark: str) -> Steps[bool]:
    """The mark ends with the bracket that opens the list."""
    out.cursor.back(mark[-1])
    yield from CallObjects().read(out, Ends(loose=True))
    return True


GRANITE_MARKS: Final = ("<|tool_call|>", "<tool_call>")

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
    "minimax": tags(prefixed("", {"<minimax:tool_call>": "</minimax:tool_call>"})),
    "deepseek_dsml": tags(
        prefixed(
            DSML,
            {
                f"<{DSML}function_calls>": f"</{DSML}function_calls>",
                f"<{DSML}tool_calls>": f"</{DSML}tool_calls>",
            },
            typed=True,
        )
    ),
    "qwen3_coder": marked({"<tool_call>": qwen3_coder, "<function=": lambda out, _: Tags(QWEN).bare_if_offered(out)}),
    "glm45": marked({"<tool_call>": lambda out, _: Tags(GLM).named_by_text(out)}),
    "hermes": marked({"<tool_call>": HERMES}),
    "granite": marked(
        dict.fromkeys(
            GRANITE_MARKS, call_objects(CallObjects(), Ends(("</tool_call>",), others=GRANITE_MARKS, loose=True))
        )
    ),
    "phi4": marked({"functools[": phi4}),
    "mistral": marked(
        {
            headed.MISTRAL_CALLS: lambda out, _: headed.mistral(out),
            headed.MISTRAL_END: headed.final_token,
        },
        channels={"[THINK]": "[/THINK]"},
    ),
    "deepseek_v3": deepseek(headed.deepseek_v3),
    "deepseek_v31": deepseek(headed.deepseek_v31),
    "kimi_k2": marked(
        {
            headed.KIMI_CALLS: lambda out, _: headed.section(out, headed.KIMI_CALL, headed.KIMI_CALLS_END),
            headed.KIMI_CALL: lambda out, _: headed.kimi_k2(out),
        },
        dropped=(headed.KIMI_CALLS_END,),
    ),
    "functionary_v32": Grammar(headed.functionary_v32),
    "functionary_v31": marked({headed.FUNCTION_TAG: lambda out, _: headed.functionary_v31(out)}),
    "command_r": marked(
        {
            "<|START_ACTION|>": call_objects(
                CallObjects("tool_name", "tool_call_id", frozenset({"directly_answer", "directly-answer"})),
                Ends(("<|END_ACTION|>",)),
            )
        },
        channels={"<|START_THINKING|>": "<|END_THINKING|>"},
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "harmony": Grammar(read_harmony),
    "gemma4": marked({gemma.OPEN: lambda out, _: gemma.gemma_call(out)}, channels={"<|channel>thought": "<channel|>"}),
    "llama3_json": Grammar(read_bare_json, dropped=("<|python_tag|>", "<|eom_id|>", "<|eot_id|>")),
    "litellm_json": Grammar(read_bare_json),
    "pythonic": Grammar(read_pythonic, dropped=END_MARKS),
    "react": Grammar(read_react),
}
