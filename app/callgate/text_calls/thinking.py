"""Finds out whether a model's chat template opens the thinking, so that its text begins inside it and has only `</think>`.

Of such a model everything up to `</think>` is reasoning, and the text of a streamed answer is held until a think tag or the end.
Where it is not known it is held until the first sentence shows that it is no thinking. It is decided by the model's name, or else by
its first answers, and `LearntThinking` remembers what was learnt.
"""

import re
from typing import TYPE_CHECKING, Final, Literal, Protocol

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


ANSWERS_UNTIL_UNLEARNT: Final = 10
"""Answers in a row without a lone end of thinking after which it is doubted that a model still opens its thinking."""


class LearntThinking(Protocol):
    """What was learnt of the thinking of a deployment by its answers, also by processes before this one."""

    def opens(self) -> bool | None:
        """True if its template opens the thinking, False if not, None if that is not known."""
        ...

    def learn(self, *, opens: bool | None) -> None: ...


class _NotKept:
    """Remembers nothing."""

    def opens(self) -> bool | None:
        return None

    def learn(self, *, opens: bool | None) -> None: ...


class ThinkingMemory:
    """What is known of one deployment's thinking."""

    def __init__(
        self, model_name: str = "", setting: ThinkingSetting = "auto", learnt: LearntThinking | None = None
    ) -> None:
        self._setting = setting
        self._learnt = learnt or _NotKept()
        name = model_name.lower()
        self._opens = setting == "prefilled" or bool(_PREFILLED.search(name))
        self._is_known = setting != "auto" or self._opens or bool(_NOT_PREFILLED.search(name))
        self._is_learnt = False
        opens = None
        if setting == "auto":
            opens = self._learnt.opens()
        if opens is not None and (opens or not self._is_known):
            self._opens = opens
            self._is_known = self._is_learnt = True
        self._answers = 0

    def mode(self, *, streams: bool) -> "Thinking":
        """Return the mode for reading the next answer. Holding a whole answer costs nothing."""
        if self._setting == "prefilled":
            return "prefilled"
        if self._setting == "none":
            return "none"
        if self._opens or not streams:
            return "unknown"
        if self._is_known:
            return "none"
        return "by_first_sentence"

    def note_answer(self, *, had_lone_end: bool) -> None:
        """Note the end of an answer."""
        if self._setting != "auto":
            return
        if had_lone_end:
            self._answers = 0
            self._settle(opens=True)
            return
        self._answers += 1
        if not self._is_known and self._answers >= ANSWERS_UNTIL_NONE:
            self._settle(opens=False)
        elif self._is_learnt and self._opens and self._answers >= ANSWERS_UNTIL_UNLEARNT:
            self._opens = self._is_known = self._is_learnt = False
            self._answers = 0
            self._learnt.learn(opens=None)

    def _settle(self, *, opens: bool) -> None:
        if self._is_known and self._opens == opens:
            return
        self._opens = opens
        self._is_known = self._is_learnt = True
        self._learnt.learn(opens=opens)
