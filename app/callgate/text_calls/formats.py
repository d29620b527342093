"""Defines the formats: the marks of each, and the grammars that read what they open."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from callgate.calls.names import resolve_name
from callgate.text_calls import headed, nested_tags
from callgate.text_calls.bare_json import BARE_OPENINGS, JSON_MARKS, read_bare_json, read_bare_or_marked_json
from callgate.text_calls.event_sink import EventSink
from callgate.text_calls.gemma import FUNCTIONGEMMA, GEMMA4, GemmaMarks, gemma_call
from callgate.text_calls.harmony import HARMONY, MUSE, read_messages
from callgate.text_calls.json_calls import ARGUMENT_KEYS, FENCE, CallObjects, Ends
from callgate.text_calls.prose import Prose, read_channel
from callgate.text_calls.pythonic import END_MARKS, MARKS, read_pythonic
from callgate.text_calls.react import ACTION, read_react
from callgate.text_calls.tag_calls import (
    HEAD_LIMIT,
    NAME,
    Tags,
    Vocabulary,
    after_equals,
    attributes,
    attributes_up_to,
    key_up_to,
    prefixed,
)
from callgate.text_calls.text_cursor import Steps, finder

Block = Callable[[EventSink, str], Steps[bool]]
"""Reads what a mark opened. False: it opened nothing, the mark is prose and nothing more was read."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The reader of a format."""

    read: Callable[[EventSink], Steps[None]]
    channels: Mapping[str, str] = field(default_factory=dict)
    """The format's own reasoning channels, with their end marks."""
    dropped: tuple[str, ...] = ()
    """Tokens that are dropped."""
    openings: tuple[str, ...] = ()
    """The beginnings of calls."""
    ends_thinking: tuple[str, ...] = ()
    """Tokens that end unclosed thinking at any place, because they do not occur in prose."""
    unmarked: str = ""
    """Text that every call has in a format without marks: after prose with it, a call may be in a value of a quoted one."""
    tokens: tuple[str, ...] | None = ()
    """Opening marks that are special tokens, which prose cannot have: prose behind such a call is no doubt. None for all."""
    only_first: bool = False
    """Only the first call counts, and what follows it is dropped."""


def marked(
    blocks: Mapping[str, Block],
    *,
    asides: Mapping[str, Block] | None = None,
    channels: Mapping[str, str] | None = None,
    dropped: tuple[str, ...] = (),
    strays: tuple[str, ...] = (),
    ends_thinking: tuple[str, ...] = (),
) -> Grammar:
    """Make a grammar of prose with marks: `blocks` open calls, `asides` anything else. `strays`: end marks that are dropped if
    they are repeated."""
    all_blocks = {**blocks, **(asides or {})}

    def read(out: EventSink) -> Steps[None]:
        prose = Prose(out, *all_blocks)
        while (mark := (yield from prose.step())) is not None:
            if not mark:
                continue
            if not (yield from all_blocks[mark](out, mark)):
                out.add_text(mark)
            elif strays:
                yield from swallow(out, strays)

    return Grammar(read, channels or {}, dropped, tuple(blocks), ends_thinking)


def swallow(out: EventSink, strays: tuple[str, ...]) -> Steps[None]:
    """Read and drop repeated end marks after a call."""
    pieces: list[str] = []
    while True:
        yield from out.cursor.space(pieces.append)
        if (yield from out.cursor.one_of(strays)) is None:
            out.add_text("".join(pieces))
            return
        pieces.clear()


def tags(
    *vocabularies: Vocabulary,
    bare: bool = False,
    channels: Mapping[str, str] | None = None,
    dropped: tuple[str, ...] = (),
) -> Grammar:
    blocks: dict[str, Block] = {}
    for vocabulary in vocabularies:
        grammar = Tags(vocabulary)
        blocks |= dict.fromkeys(vocabulary.wrappers, _tags_or_json(grammar))
        if bare:
            blocks[vocabulary.call] = partial(_bare, grammar)
    return marked(blocks, channels=channels, dropped=dropped)


def _bare(grammar: Tags, out: EventSink, _: str) -> Steps[bool]:
    return grammar.bare(out)


def _tags_or_json(grammar: Tags) -> Block:
    """Read calls as tags, or call objects in the same wrapper."""

    def block(out: EventSink, wrapper: str) -> Steps[bool]:
        yield from out.cursor.space()
        if (yield from out.cursor.peek()) in ("{", "["):
            yield from CallObjects().read(out, Ends((grammar.vocabulary.wrappers[wrapper],), rows=True))
            return True
        return (yield from grammar.wrapped(out, wrapper))

    return block


def json_block(begin: str, end: str, objects: CallObjects | None = None, *, rows: bool = False) -> dict[str, Block]:
    """Make a block of call objects between two marks."""
    return {begin: call_objects(objects or CallObjects(), Ends((end,), rows=rows))}


def open_json_block(*begins: str, end: str, objects: CallObjects | None = None) -> dict[str, Block]:
    """Make a block of call objects after a mark, with an optional end mark."""
    return dict.fromkeys(begins, call_objects(objects or CallObjects(), Ends((end,), others=begins, loose=True)))


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
        dropped=(headed.DEEPSEEK_CALLS_END, headed.DEEPSEEK_CALL_END, headed.DEEPSEEK_SEPARATOR, DEEPSEEK_END),
    )


ANTML: Final = "antml" + ":"
DSML: Final = "｜DSML｜"
DEEPSEEK_END: Final = "<｜end▁of▁sentence｜>"

HERMES: Final = call_objects(CallObjects(), Ends(("</tool_call>",)))


def functions(wrapper: str) -> Vocabulary:
    """`<function=N><parameter=P>V</parameter></function>` in a wrapper of a format's own."""
    return Vocabulary(
        call="<function=",
        call_end="</function>",
        value="<parameter=",
        value_end="</parameter>",
        head=after_equals,
        wrappers={f"<{wrapper}>": f"</{wrapper}>"},
        own_lines=True,
    )


def keys_and_values(prefix: str = "", suffix: str = "", **options: Any) -> Vocabulary:
    """`<tool_call>N<arg_key>P</arg_key><arg_value>V</arg_value></tool_call>`, each with a prefix or a suffix."""
    return Vocabulary(
        call=f"<{prefix}tool_call{suffix}>",
        call_end=f"</{prefix}tool_call{suffix}>",
        value=f"<{prefix}arg_key{suffix}>",
        value_end=f"</{prefix}arg_value{suffix}>",
        head=attributes,
        value_head=key_up_to(f"</{prefix}arg_key{suffix}>", f"<{prefix}arg_value{suffix}>"),
        key_end=f"</{prefix}arg_key{suffix}>",
        **options,
    )


QWEN: Final = functions("tool_call")
GLM: Final = keys_and_values()


def tool_call(usual: Block, vocabulary: Vocabulary = GLM) -> Block:
    """Read the content of the tags that most models use, by its beginning: call objects, a function with its parameters, or
    the name of a tool. Anything else is read, and reported, as the usual format."""

    def block(out: EventSink, mark: str) -> Steps[bool]:
        cursor = out.cursor
        yield from cursor.space()
        if (yield from cursor.peek()) in ("{", "[", "`"):
            return (yield from HERMES(out, mark))
        if (yield from cursor.one_of((QWEN.call,))) is not None:
            cursor.back(QWEN.call)
            return (yield from Tags(QWEN).in_row(out))
        name = yield from cursor.run(NAME, HEAD_LIMIT)
        cursor.back(name or "")
        if name and resolve_name(name, out.tools) is not None:
            return (yield from Tags(vocabulary).named_by_text(out))
        return (yield from usual(out, mark))

    return block


def internlm2(out: EventSink, _: str) -> Steps[bool]:
    """Read the name of a call, and a call object."""
    yield from out.cursor.space()
    yield from out.cursor.one_of(("<|plugin|>", "<|interpreter|>"))
    yield from CallObjects().read(out, Ends(("<|action_end|>",)))
    return True


def hunyuan(out: EventSink, mark: str) -> Steps[bool]:
    """Read a list of call objects, or calls as tags in the same wrapper."""
    cursor = out.cursor
    yield from cursor.space()
    if (yield from cursor.peek()) in ("[", "{"):
        yield from CallObjects().read(out, Ends(("</tool_calls>",), rows=True))
        return True
    return (yield from headed.section(out, "<tool_call>", "</tool_calls>"))


def longcat(out: EventSink, _: str) -> Steps[bool]:
    """Read a call object, or a name with tags for its arguments."""
    yield from out.cursor.space()
    if (yield from out.cursor.peek()) in ("{", "["):
        yield from CallObjects().read(out, Ends((LONGCAT.call_end,)))
        return True
    return (yield from Tags(LONGCAT).named_by_text(out))


def named(vocabulary: Vocabulary) -> Block:
    """Read a call whose name is the text after its tag."""
    return lambda out, _: Tags(vocabulary).named_by_text(out)


def bare_function(vocabulary: Vocabulary) -> Block:
    """Read a call outside of its wrapper."""
    return lambda out, _: Tags(vocabulary).bare_if_offered(out)


def gemma4_channel(out: EventSink, mark: str) -> Steps[bool]:
    """Read thinking, by the name of its channel; without a name the mark is dropped."""
    if (yield from out.cursor.one_of(("thought",))) is not None:
        yield from read_channel(out, (GEMMA4_CHANNEL_END,), f"{mark}thought")
    else:
        out.forget()
    return True


def gemma(marks: GemmaMarks) -> dict[str, Block]:
    return {marks.open: lambda out, _: gemma_call(out, marks)}


def phi4(out: EventSink, mark: str) -> Steps[bool]:
    """Read a list of calls whose opening bracket is part of the mark."""
    out.cursor.back(mark[-1])
    yield from CallObjects().read(out, Ends(loose=True))
    return True


def action(out: EventSink, mark: str) -> Steps[bool]:
    """Read a list of call objects in a code fence."""
    pieces = [mark]
    yield from out.cursor.space(pieces.append)
    if (yield from out.cursor.one_of((FENCE,))) is None:
        out.add_text("".join(pieces))
        return True
    out.cursor.back(FENCE)
    yield from COMMAND_R.read(out, Ends(loose=True, fence_is_layout=True))
    return True


def end_of_citation(out: EventSink, _: str) -> Steps[bool]:
    """Read and drop the sources of a citation: `</co: 0:[1,2]>`."""
    sources = yield from out.cursor.run(_SOURCES, HEAD_LIMIT)
    if (yield from out.cursor.one_of((">",))) is None:
        out.cursor.back(sources or "")
        return False
    return True


def gigachat(out: EventSink, mark: str) -> Steps[bool]:
    """Read a separator of messages, with or without the header of a call."""
    yield from out.cursor.space()
    if mark == GIGACHAT_MESSAGE and (yield from out.cursor.one_of((GIGACHAT_HEADER,))) is None:
        return True
    yield from CallObjects().read(out, Ends(("</s>",), others=GIGACHAT_MARKS, loose=True))
    return True


def inkling_header(out: EventSink, _: str) -> Steps[bool]:
    """Read the header of a message, perhaps with a name, up to the token of the message's kind."""
    name = yield from out.cursor.run(NAME, HEAD_LIMIT)
    contents = (*INKLING_CALLS, INKLING_THINKING, *INKLING_TOKENS)
    if (token := (yield from out.cursor.one_of(contents))) is not None:
        out.cursor.back(token)
    else:
        out.add_text(name or "")
    return True


def inkling_thinking(out: EventSink, _: str) -> Steps[bool]:
    """Read reasoning, up to its end or the next message."""
    others = (INKLING_HEADER, *INKLING_CALLS, *INKLING_TOKENS[len(INKLING_ENDS) :])
    mark = yield from out.cursor.until(finder((*INKLING_ENDS, *others)), out.add_reasoning)
    if mark in others:
        out.cursor.back(mark or "")
    return True


_SOURCES = re.compile(r"[0-9:,\[\] ]*")
COHERE_TURN: Final = ("<|CHATBOT_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
COMMAND_R: Final = CallObjects("tool_name", "tool_call_id", frozenset({"directly_answer", "directly-answer"}))
GEMMA4_CHANNEL_END: Final = "<channel|>"
GIGACHAT_MESSAGE: Final = "<|message_sep|>"
GIGACHAT_HEADER: Final = "function call<|role_sep|>"
GIGACHAT_MARKS: Final = (GIGACHAT_MESSAGE, "<|function_call|>")
INKLING_ENDS: Final = ("<|end_message|>", "<|content_model_end_sampling|>")
INKLING_HEADER: Final = "<|message_model|>"
INKLING_CALLS: Final = {
    "<|content_invoke_tool_json|>": call_objects(
        CallObjects(argument_keys=("args", *ARGUMENT_KEYS)), Ends(INKLING_ENDS, others=(INKLING_HEADER,))
    )
}
INKLING_THINKING: Final = "<|content_thinking|>"
INKLING_TOKENS: Final = (
    *INKLING_ENDS,
    "<|content_text|>",
    "<|content_invoke_tool_text|>",
    "<|content_tool_error|>",
)

SEED: Final = functions("seed:tool_call")
QUOTED: Final = keys_and_values(quoted=True)
HY3: Final = keys_and_values(name_end="<tool_sep>")
HY3_OPEN: Final = keys_and_values(suffix=":opensource", name_end="<tool_sep:opensource>")
"""The format of the open weights."""
LONGCAT: Final = keys_and_values("longcat_")

SOLAR: Final = Vocabulary(
    call="<|tool_call:start|>",
    call_end="<|tool_call:end|>",
    value="<|tool_arg:start|>",
    value_end="<|tool_arg:end|>",
    head=attributes,
    value_head=key_up_to("<|tool_arg:value|>"),
    key_end="<|tool_arg:value|>",
)

KIMI_K3: Final = Vocabulary(
    call="<|open|>call",
    call_end="<|close|>call<|sep|>",
    value="<|open|>argument",
    value_end="<|close|>argument<|sep|>",
    head=attributes_up_to("<|sep|>", "tool", escaped=True),
    value_head=attributes_up_to("<|sep|>", "key", escaped=True),
    wrappers={"<|open|>tools<|sep|>": "<|close|>tools<|sep|>"},
    typed=("type", "string"),
)

MINICPM5: Final = Vocabulary(
    call="<function",
    call_end="</function>",
    value="<param",
    value_end="</param>",
    head=attributes_up_to(">", run_together=True),
)


def dsml(space: str, *wrappers: str) -> Vocabulary:
    """Make the vocabulary of DeepSeek's tags, with or without a blank after their prefix."""
    return prefixed(
        f"{DSML}{space}",
        {f"<{DSML}{space}{wrapper}>": f"</{DSML}{space}{wrapper}>" for wrapper in wrappers},
        typed=("string", "true"),
    )


TOOL_CALL_END: Final = ("</tool_call>",)

_TOKENS: Final[Mapping[str, tuple[str, ...] | None]] = {
    **dict.fromkeys(
        (
            *(
                "mistral",
                "deepseek_v3",
                "deepseek_v31",
                "deepseek_dsml",
                "kimi_k2",
                "kimi_k3",
                "harmony",
                "muse",
                "gemma4",
            ),
            *(
                "functiongemma",
                "command_r",
                "internlm2",
                "apertus",
                "gigachat3",
                "inkling",
                "solar",
                "step3",
                "minimax_m3",
            ),
        )
    ),
    "granite": ("<|tool_call|>",),
    "pythonic": ("<|python_start|>", "<|tool_call_start|>"),
    "olmo3": ("<|python_start|>", "<|tool_call_start|>"),
}
"""The formats with opening marks that are special tokens, and which those are; None for all."""

_GRAMMARS: Final[Mapping[str, Grammar]] = {
    # Call objects in JSON
    "hermes": marked({"<tool_call>": tool_call(HERMES)}, strays=TOOL_CALL_END),
    "granite": marked(
        open_json_block("<|tool_call|>", "<tool_call>", end="</tool_call>"),
        dropped=("<response>", "</response>"),
        strays=TOOL_CALL_END,
    ),
    "granite_20b_fc": marked(
        open_json_block("<function_call>", end="</function_call>", objects=CallObjects(in_lists=False))
    ),
    "phi4": marked({"functools[": phi4}),
    "ernie45": marked({"<tool_call>": tool_call(HERMES)}, dropped=("<response>", "</response>"), strays=TOOL_CALL_END),
    "tool_calls": marked(json_block("<tool_calls>", "</tool_calls>", rows=True), strays=("</tool_calls>",)),
    "apriel": marked(
        json_block("<tool_calls>", "</tool_calls>", rows=True),
        channels={"Here are my reasoning steps:": "[BEGIN FINAL RESPONSE]"},
        dropped=("[END FINAL RESPONSE]",),
    ),
    "nemotron": marked(json_block("<TOOLCALL>", "</TOOLCALL>", rows=True), dropped=("</TOOLCALL>",)),
    "internlm2": marked({"<|action_start|>": internlm2}, dropped=("<|action_end|>", "<|im_end|>")),
    "apertus": marked(
        json_block("<|tools_prefix|>", "<|tools_suffix|>", CallObjects(keyed=True)),
        channels={"<|inner_prefix|>": "<|inner_suffix|>"},
        dropped=("<|tools_suffix|>",),
    ),
    "gigachat3": marked(
        dict.fromkeys((*GIGACHAT_MARKS, GIGACHAT_HEADER), gigachat) | {headed.MISTRAL_END: headed.final_token}
    ),
    "inkling": marked(
        {INKLING_HEADER: inkling_header, **INKLING_CALLS},
        asides={INKLING_THINKING: inkling_thinking},
        dropped=INKLING_TOKENS,
    ),
    "command_r": marked(
        {"<|START_ACTION|>": call_objects(COMMAND_R, Ends(("<|END_ACTION|>",)))},
        asides={"</co: ": end_of_citation},
        channels={"<|START_THINKING|>": "<|END_THINKING|>"},
        dropped=(
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
            "<|END_ACTION|>",
            "<co>",
            *COHERE_TURN,
        ),
    ),
    "command_r_plus": marked({"Action:": action}, dropped=COHERE_TURN),
    # Tags
    "xml": tags(prefixed("", {"<function_calls>": "</function_calls>"}, own_lines=True), bare=True),
    "antml": tags(
        prefixed(
            ANTML,
            {
                f"<{ANTML}function_calls>": f"</{ANTML}function_calls>",
                "<function_calls>": "</function_calls>",
            },
            own_lines=True,
        ),
        bare=True,
    ),
    "minimax": tags(prefixed("", {"<minimax:tool_call>": "</minimax:tool_call>"}), dropped=("[e~[",)),
    "minimax_m3": marked(
        {nested_tags.OPEN: lambda out, _: nested_tags.nested_calls(out)}, channels={"<mm:think>": "</mm:think>"}
    ),
    "dots": tags(prefixed("", {"<dots_function_call>": "</dots_function_call>"}), dropped=("</dots_function_call>",)),
    "step3": tags(
        prefixed(
            "steptml:",
            {"<｜tool_calls_begin｜>": "<｜tool_calls_end｜>", "<｜tool_call_begin｜>": "<｜tool_call_end｜>"},
        ),
        bare=True,
        dropped=("<｜tool_calls_end｜>", "<｜tool_call_end｜>"),
    ),
    "deepseek_dsml": tags(
        dsml("", "function_calls", "tool_calls"), dsml(" ", "calls"), bare=True, dropped=(DEEPSEEK_END,)
    ),
    "kimi_k3": tags(
        KIMI_K3,
        bare=True,
        channels={"<|open|>think<|sep|>": "<|close|>think<|sep|>"},
        dropped=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|close|>tools<|sep|>",
        ),
    ),
    "qwen3_coder": marked(
        {"<tool_call>": tool_call(lambda out, _: Tags(QWEN).in_row(out)), QWEN.call: bare_function(QWEN)}
    ),
    "seed_oss": marked(
        {"<seed:tool_call>": lambda out, _: Tags(SEED).in_row(out), SEED.call: bare_function(SEED)},
        channels={"<seed:think>": "</seed:think>"},
        dropped=("</seed:tool_call>",),
    ),
    "minicpm5": marked({MINICPM5.call: bare_function(MINICPM5)}),
    "glm45": marked({"<tool_call>": tool_call(named(GLM))}, strays=TOOL_CALL_END),
    "hyperclovax": marked(
        {"<tool_call>": tool_call(named(QUOTED), QUOTED), **json_block("-> tool/function_call", "<|im_end|>")},
        dropped=("<|im_end|>", "<|im_start|>assistant"),
        strays=TOOL_CALL_END,
    ),
    "hunyuan": marked(
        {
            "<tool_calls>": hunyuan,
            "<tool_call>": tool_call(named(HY3), HY3),
            "<tool_calls:opensource>": lambda out, _: headed.section(out, HY3_OPEN.call, "</tool_calls:opensource>"),
            HY3_OPEN.call: named(HY3_OPEN),
        },
        channels={"<think:opensource>": "</think:opensource>"},
        dropped=("</tool_calls>", "</tool_calls:opensource>", "<answer>", "</answer>"),
    ),
    "longcat": marked({"<longcat_tool_call>": longcat}, dropped=("</longcat_tool_call>",)),
    "solar": marked(
        {SOLAR.call: named(SOLAR), headed.SOLAR_CALL: lambda out, _: headed.solar(out)},
        channels={"<|think|>": "<|end|>"},
        dropped=(SOLAR.call_end, headed.SOLAR_CALL_END, *headed.SOLAR_TOKENS),
    ),
    # Names in headers
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
        dropped=(headed.KIMI_CALLS_END, headed.KIMI_CALL_END, headed.KIMI_ARGUMENTS),
        ends_thinking=(headed.KIMI_CALLS, headed.KIMI_CALL),
    ),
    "functionary_v32": Grammar(headed.functionary_v32, openings=(headed.FUNCTIONARY_MARK,), unmarked="{"),
    "functionary_v31": marked({headed.FUNCTION_TAG: lambda out, _: headed.functionary_v31(out)}),
    "glm4": Grammar(headed.glm4, openings=("{",), unmarked="{"),
    "harmony": Grammar(lambda out: read_messages(out, HARMONY), openings=("<|start|>", "<|channel|>")),
    "muse": Grammar(lambda out: read_messages(out, MUSE)),
    # Notations of their own
    "gemma4": marked(
        gemma(GEMMA4),
        asides={"<|channel>": gemma4_channel},
        channels={"<|think|>": GEMMA4_CHANNEL_END},
        dropped=("<turn|>", "<|tool_response>"),
    ),
    "functiongemma": marked(gemma(FUNCTIONGEMMA), dropped=("<start_function_response>", FUNCTIONGEMMA.end)),
    "pythonic": Grammar(read_pythonic, dropped=END_MARKS, openings=(*MARKS, "["), unmarked="["),
    "olmo3": Grammar(read_pythonic, dropped=END_MARKS, openings=(*MARKS, "["), unmarked="["),
    "llama3_json": Grammar(
        read_bare_json, dropped=("<|python_tag|>", "<|eom_id|>", "<|eot_id|>"), openings=BARE_OPENINGS, unmarked="{"
    ),
    "litellm_json": Grammar(read_bare_or_marked_json, openings=(*BARE_OPENINGS, *JSON_MARKS), unmarked="{"),
    "react": Grammar(read_react, openings=(ACTION,), unmarked="{", only_first=True),
}

GRAMMARS: Final[Mapping[str, Grammar]] = {
    format: replace(grammar, tokens=_TOKENS.get(format, ())) for format, grammar in _GRAMMARS.items()
}
