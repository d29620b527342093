"""Makes the answers, and reads them: what runs, what is asked back, what stays text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from callgate.conversation.events import CallWritten
from callgate.text_calls.formats import GRAMMARS
from callgate.text_calls.prompts import style_for
from callgate.text_calls.reader import reader_for
from callgate.text_calls.writers import PastCall
from tests.text_answers.phrases import PHRASES

RAN, ASKED, TEXT = "ran", "asked back", "text"

TOOLS: Final = {"get_weather": ("city",), "get_time": ()}
WRITERS: Final = (
    *("hermes", "qwen3_coder", "glm45", "xml", "minimax", "llama3_json", "litellm_json", "phi4", "functionary_v31"),
    *("tool_calls", "mistral", "deepseek_v31", "deepseek_dsml", "kimi_k2", "gemma4", "command_r", "harmony"),
    *("internlm2", "step3"),
)
"""The formats whose models write the answers."""

# `{c}` is the call, the others are phrases.
GENUINE: Final[Mapping[str, str]] = {
    "bare": "{c}",
    "lead line": "{lead}\n\n{c}",
    "lead on the same line": "{lead} {c}",
    "thinking before": "<think>{lead}</think>\n{c}",
    "plan": "1. {plan0}\n2. {plan1}\n\n{c}",
    "between lines": "{lead}\n{c}\n{plan1}\n{c}",
    "hedged lead": "{hedge}\n{c}",
    "an example that is meant": "{example}\n{c}",
    "what is not done yet": "{until}\n{c}",
    "in a list": "{lead}\n\n- {c}",
    "in a numbered list": "1. {c}",
    "fence alone": "```json\n{c}\n```",
    "lead and fence": "{lead}\n\n```\n{c}\n```",
    "an open fence": "{lead}\n```\n{c}",
    "end of the turn": "{lead}\n{c}<|im_end|>",
    "closing sentence": "{lead}\n{c}\n\n{wait}",
    "closing sentence on the same line": "{lead}\n{c} {wait}",
    "closing emoji": "{lead}\n{c} ⏳",
    "what is not done until then": "{lead}\n{c}\n{until}",
    "lead, fence and closing sentence": "{lead}\n```json\n{c}\n```\n{wait}",
    "backticks": "{lead} `{c}`",
}
RARE: Final[Mapping[str, str]] = {"backticks": "English"}
"""What models seldom write: in one language is as much as there is of it."""
TALK: Final[Mapping[str, str]] = {
    "shown and explained": "{shown}\n\n{c}\n\n{explained}",
    "shown in a fence": "{shown}\n\n```\n{c}\n```\n\n{explained}",
    "shown with a remark": "{shown}\n\n```\n# {explained}\n{c}\n```",
    "inline code": "{quoting0} `{c}`. {explained}",
    "block quote": "{quoting0}:\n\n> {c}\n\n{quoting1}",
    "quotation marks": "{quoting0}: “{c}”, {quoting1}",
    "element": "<pre>\n{c}\n</pre>\n{explained}",
    "table": "| {lead} | {c} |\n| --- | --- |",
    "thinking": "<think>\n{shown}\n{c}\n{refuses}\n</think>\n{explained}",
    "refused behind": "{quoting0}:\n{c}\n{refuses}",
    "asked behind": "{lead}\n{c}\n\n{asks}",
    "past, and more": "{past}\n{c}\n{explained}",
    "refused before": "{refused}\n{c}",
    "asked before": "{asked}\n{c}",
    "shown at the end": "{shown}\n{c}",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, and what it is."""

    writer: str
    language: str
    kind: str
    is_meant: bool
    text: str

    @property
    def looks_behind(self) -> bool:
        return GRAMMARS[self.writer].tokens is not None


def answers() -> Iterator[Answer]:
    for writer in WRITERS:
        call = (
            style_for(writer).write("", [PastCall("get_weather", {"city": "Paris"}, "functions.get_weather:0")]).strip()
        )
        for language, phrases in PHRASES.items():
            words = {name: phrase for name, phrase in phrases.items() if isinstance(phrase, str)}
            for name, pair in phrases.items():
                if not isinstance(pair, str):
                    words |= {f"{name}{place}": phrase for place, phrase in enumerate(pair)}
            for is_meant, kinds in ((True, GENUINE), (False, TALK)):
                for kind, template in kinds.items():
                    if RARE.get(kind, language) != language:
                        continue
                    line_break = "\n> " if "> {c}" in template else "\n"
                    text = template.format(c=call.replace("\n", line_break), **words)
                    yield Answer(writer, language, kind, is_meant, text)


def outcome(answer: Answer, *, piece: int = 0) -> str:
    """What becomes of an answer, whole or in pieces: its calls run, the model is asked to write them alone, or they stay text."""
    reader = reader_for(answer.writer, TOOLS, thinking="unknown")
    size = piece or len(answer.text)
    pieces = [answer.text[at : at + size] for at in range(0, len(answer.text), size)]
    events = [*(event for text in pieces for event in reader.feed(text)), *reader.finish()]
    calls = [event for event in events if isinstance(event, CallWritten)]
    if any(call.flaw is None and call.is_alone for call in calls):
        return RAN
    return ASKED if calls else TEXT
