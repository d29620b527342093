"""Finds out whether a model's chat template opens the thinking, so that its text begins inside it and has only `</think>`.

Of such a model everything up to `</think>` is reasoning. Where it is not known, the text of a streamed answer is held until a
think tag or the end. It is decided by the model's name, or else by its first answers.
"""

import re
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from callgate.text_calls.event_sink import Thinking

ThinkingSetting = Literal["auto", "prefilled", "none"]

ANSWERS_UNTIL_NONE: Final = 3
"""Answers without a lone end of thinking after which a model of an unknown family is taken not to have any."""

_PREFILLED = re.compile(
    r"deepseek-?r1|r1-distill|qwq|qwen-?3.*thinking|qwen-?3[.-][5-9]|thinking-25|minimax-?m[12]|kimi-?k2.*think|"
    r"step-?3|mimo|nemotron.*(?:nano|super|ultra|3)|glm-?z1|exaone.*deep|olmo-?3.*think|phi-?4.*reason|"
    r"lfm.*thinking|-thinking|command-a-(?:plus|reasoning)"
)
_NOT_PREFILLED = re.compile(
    r"gpt-oss|llama-?[234]|mistral|mixtral|ministral|codestral|devstral|pixtral|gemma(?!-?[4-9](?!\d*b))|command-?[ar]|c4ai|granite|"
    r"functionary|phi-?[34]|hermes-?[23]|qwen-?2|qwen-?3-coder|qwen-?3.*instruct|smollm-?[12]|firefunction|jamba"
)


class ThinkingMemory:
    """What is known of one deployment's thinking."""

    def __init__(self, model_name: str = "", setting: ThinkingSetting = "auto") -> None:
        self._setting = setting
        name = model_name.lower()
        self._opens = setting == "prefilled" or bool(_PREFILLED.search(name))
        self._is_known = setting != "auto" or self._opens or bool(_NOT_PREFILLED.search(name))
        self._answers = 0

    def mode(self, *, streams: bool) -> "Thinking":
        """Return the mode for reading the next answer. Holding a whole answer costs nothing."""
        if self._setting == "prefilled":
            return "prefilled"
        if self._setting == "none":
            return "none"
        if self._opens or not self._is_known or not streams:
            return "unknown"
        return "none"

    def note_answer(self, *, had_lone_end: bool) -> None:
        """Note the end of an answer."""
        self._answers += 1
        if had_lone_end:
            self._opens = self._is_known = True
        elif self._answers >= ANSWERS_UNTIL_NONE:
            self._is_known = True
