"""Keeps the prompt of a chat small: old results and thinking are cleared, and the conversation is replaced by a summary.

`ContextKeeper` is a synchronous object: it is told of messages and token counts, and returns the edited messages. The loop asks the
model for the summary, and emits what was done.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from callgate.calls.outcome import Image
from callgate.conversation import raw_json
from callgate.conversation.events import ContextChanged
from callgate.conversation.messages_api import BLOCKS, SIGNED
from callgate.conversation.ports import Message
from callgate.conversation.response_items import ITEMS
from callgate.conversation.transcript import shows_images

CLEAR_RESULTS: Final = "clear_results"
COMPACTION: Final = "compaction"
"""Kinds of `ContextChanged`, beside the types of clients' rules."""
SUMMARIZED: Final = "summarized"
"""The note of a chat that ends with the summary."""
BYTES_PER_TOKEN: Final = 4
"""Of what no provider has counted yet."""
CLEARED_TO: Final = 0.5
"""The share of the limit down to which results are cleared, so that the next turns find a prompt that does not change."""
WORTH_CLEARING: Final = 1024
"""Bytes of the smallest result that is cleared for the operator: a shorter one is not much longer than its line."""
CLEARED: Final = "[This result was cleared to make room. Call the tool again if it is needed.]"
NO_ARGUMENTS: Final = "{}"
LAST_WORDS: Final = 16_384
"""Characters of the user's last message that stand behind a summary that covers it."""
IMAGE_BYTES: Final = 6000
"""What an image or a file counts: its data says nothing of its tokens."""
_DATA: Final = re.compile(rb"base64,[A-Za-z0-9+/=_-]{1000,}")
_THOUGHTS: Final = ("reasoning_content", "reasoning", SIGNED, ITEMS)
_INSTRUCTIONS: Final = frozenset({"system", "developer"})

PROMPT: Final = """\
Summarize this conversation for whoever goes on with it and sees nothing of it but your summary. Do not answer it and call no tools.
Write down, as far as the conversation has it:
1. what the user wants, with all conditions, in the user's own words where they matter;
2. what was done and decided so far, and why;
3. all facts that are needed again: names, numbers, paths, addresses, ids, code, errors, what tools returned;
4. what is open, and the next step.
Leave out nothing that would have to be found out again."""
"""What asks for a summary, unless the operator or the client says it otherwise."""
MARK: Final = "[The conversation up to here was replaced by this summary of it:]"
SUMMARY: Final = MARK + "\n\n{summary}"
LAST_SAID: Final = "\n\n[The last message of the user in it was:]\n\n{words}"
GO_ON: Final = "\n\n[What follows is the next message of the user:]\n\n"

_encode = msgspec.json.Encoder().encode

PutAway: TypeAlias = Callable[[str, str | None, str], str | None]
"""Keeps the result of a call, given the call's id, the tool's name and the text; returns the line that stands for it, None where it stays."""

PutAwayImage: TypeAlias = Callable[[Image], str | None]
"""The same for an image."""


class ClearToolUses(msgspec.Struct, frozen=True, kw_only=True):
    """Clears the results of the oldest calls, whoever ran them. The client's rule."""

    type: str
    above_tokens: int | None = None
    above_uses: int | None = None
    keep: int = 3
    at_least: int = 0
    """The tokens that have to be cleared, or nothing is."""
    spared: frozenset[str] = frozenset()
    """The tools whose results stay."""
    inputs: bool | frozenset[str] = False
    """Whether the arguments of the calls are cleared too, or of which tools."""


class ClearThinking(msgspec.Struct, frozen=True, kw_only=True):
    """Clears the thinking of all turns but the last ones. The client's rule."""

    type: str
    keep: int | None = 1
    """None for all."""


Edit: TypeAlias = ClearToolUses | ClearThinking


class Compact(msgspec.Struct, frozen=True, kw_only=True):
    """Has the conversation replaced by a summary, once the prompt is larger than some tokens."""

    above: int | None = None
    """None: at once."""
    prompt: str = ""
    """What asks for the summary, instead of the operator's words."""
    further: str = ""
    """What is said behind those words."""
    is_last: bool = False
    """The chat ends with the summary."""


class ContextWishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a request wants of its context."""

    edits: Sequence[Edit] = ()
    compact: Compact | None = None


class ContextKeeper:
    """Edits the history of one chat before each turn, as its operator and its client want."""

    def __init__(
        self,
        *,
        wishes: ContextWishes | None = None,
        clear_above: int | None = None,
        prompt: str = "",
        put_away: PutAway | None = None,
        put_away_image: PutAwayImage | None = None,
        save: Callable[[], Awaitable[None]] | None = None,
        is_clients: Callable[[str | None], bool] = lambda name: False,
        needs_summary: bool = False,
    ) -> None:
        """`clear_above`: the tokens beyond which the oldest results of our tools are cleared, as the operator wants. `put_away` keeps
        them, `put_away_image` the images behind them, and `save` shares them before the model is told of them. `prompt`: what asks for a summary. `is_clients`: whether a tool is the client's. `needs_summary`: a summary that fails ends the chat."""
        wishes = wishes or ContextWishes()
        self._edits = wishes.edits
        self._compact = wishes.compact
        self._clear_above = clear_above
        self._prompt = prompt or PROMPT
        self._put_away = put_away
        self._put_away_image = put_away_image
        self._save = save
        self._is_clients = is_clients
        self._needs_summary = needs_summary
        self._size = 0
        self._counted = _Counted(0, 0)
        self._was_compacted = False

    def measure(self, messages: Sequence[Message], tools: Sequence[msgspec.Raw]) -> None:
        """Note the prompt of the next turn."""
        self._size = sum(map(size_of, messages)) + sum(len(bytes(tool)) for tool in tools)

    def count(self, prompt_tokens: int) -> None:
        """Note the tokens that a provider counted in the prompt that was measured last."""
        if prompt_tokens:
            self._counted = _Counted(self._size, prompt_tokens)

    def tokens(self) -> int:
        """Return about how many tokens the prompt has that was measured last."""
        return self._counted.tokens_at(self._size)

    def edited(self, messages: Sequence[Message], turn: int) -> tuple[Sequence[Message], Sequence[ContextChanged]]:
        """Return the messages of the next turn, and what was cleared in them."""
        tokens = self.tokens()
        done: list[ContextChanged] = []
        for rule in self._edits:
            if isinstance(rule, ClearThinking):
                cleared = _without_thinking(messages, rule)
            else:
                cleared = self._without_uses(messages, rule, tokens)
            if cleared is not None:
                messages = cleared.messages
                done.append(self._noted(turn, rule.type, cleared))
        if self._clear_above is not None and self.tokens() > self._clear_above:
            cleared = self._without_results(messages, self._clear_above)
            if cleared is not None:
                messages = cleared.messages
                done.append(self._noted(turn, CLEAR_RESULTS, cleared))
        return messages, done

    async def save(self) -> None:
        """Share what was put away, before the model is told of it."""
        if self._save is not None:
            await self._save()

    def due(self) -> Compact | None:
        """Return how the conversation is to be summarized before the next turn; None where it is not."""
        compact = self._compact
        if compact is None or self._was_compacted:
            return None
        if compact.above is None or self.tokens() > compact.above:
            return compact
        return None

    def must_not_fail(self, compact: Compact) -> bool:
        """Return whether a chat is ended where its summary fails."""
        return self._needs_summary or compact.above is None

    def summary_messages(self, messages: Sequence[Message], compact: Compact) -> Sequence[Message]:
        """Return the messages that ask for a summary; none where there is nothing to summarize. A question that was not answered yet is
        no part of it, unless the chat ends with the summary."""
        self._was_compacted = True
        leading, middle, question = _parts(messages)
        if compact.is_last:
            middle = [*middle, *question]
        if not middle:
            return ()
        prompt = compact.prompt or self._prompt
        if compact.further:
            prompt = f"{prompt}\n\n{compact.further}"
        return [*leading, *middle, {"role": "user", "content": prompt}]

    def compacted(
        self, messages: Sequence[Message], summary: str, compact: Compact, turn: int
    ) -> tuple[Sequence[Message], ContextChanged]:
        """Return the history with a summary in place of what it summarizes, and what was done."""
        leading, middle, question = _parts(messages)
        text = SUMMARY.format(summary=summary)
        if question and not compact.is_last:
            [last] = question
            stands_for = text + GO_ON + _words(last)[:LAST_WORDS]
            following: Message = _behind(text + GO_ON, last)
        else:
            if words := _last_words([*middle, *question]):
                text += LAST_SAID.format(words=words)
            stands_for = text
            following = {"role": "user", "content": text}
        shorter: list[Message] = [*leading, following]
        count = len(messages) - len(shorter) + 1
        tokens = self._take_off(sum(map(size_of, messages)) - sum(map(size_of, shorter)))
        return shorter, ContextChanged(turn, COMPACTION, count, tokens, summary=summary, stands_for=stands_for)

    def turn_was_taken(self) -> None:
        """Note that the model was asked, so that what has grown since may be summarized."""
        if self._compact is not None and not self._compact.is_last:
            self._was_compacted = False

    def _take_off(self, size: int) -> int:
        """Make the prompt smaller by these bytes; return about how many tokens that is."""
        before = self.tokens()
        self._size -= size
        return max(before - self.tokens(), 0)

    def _tokens_in(self, size: int) -> int:
        return self.tokens() - self._counted.tokens_at(self._size - size)

    def _noted(self, turn: int, kind: str, cleared: "_Cleared") -> ContextChanged:
        return ContextChanged(turn, kind, cleared.count, self._take_off(cleared.size))

    def _without_uses(self, messages: Sequence[Message], rule: ClearToolUses, tokens: int) -> "_Cleared | None":
        if rule.above_tokens is not None and tokens <= rule.above_tokens:
            return None
        uses = list(_results_in(messages))
        if rule.above_uses is not None and len(uses) <= rule.above_uses:
            return None
        older = uses[: len(uses) - rule.keep] if rule.keep else uses
        changed: dict[int, Message] = {}
        calls: set[str] = set()
        count = 0
        for use in older:
            if use.name in rule.spared or use.message.get("content") == CLEARED:
                continue
            changed[use.place] = {**use.message, "content": CLEARED}
            count += 1
            if rule.inputs is True or (rule.inputs and use.name in rule.inputs):
                calls.add(use.id)
        if calls:
            changed |= _without_arguments(messages, calls)
        cleared = _cleared(messages, changed, count)
        if cleared is None or self._tokens_in(cleared.size) < rule.at_least:
            return None
        return cleared

    def _without_results(self, messages: Sequence[Message], above: int) -> "_Cleared | None":
        """Clear the oldest results of our tools, and images, until the prompt is small enough. Those of the newest turn stay."""
        newest = _newest_turn(messages)
        uses = {use.place: use for use in _results_in(messages, made_here=True)}
        changed: dict[int, Message] = {}
        size = self._size
        for place, message in enumerate(messages[:newest]):
            if self._counted.tokens_at(size) <= above * CLEARED_TO:
                break
            shorter = self._without_text(uses[place]) if place in uses else self._without_images(message)
            if shorter is not None:
                changed[place] = shorter
                size -= size_of(message) - size_of(shorter)
        return _cleared(messages, changed, len(changed))

    def _without_text(self, use: "_Use") -> Message | None:
        """Put away the text of a result; return what is left, None where it stays."""
        content = use.message.get("content")
        if self._is_clients(use.name) or not isinstance(content, str) or len(content) < WORTH_CLEARING:
            return None
        line = None if self._put_away is None else self._put_away(use.id, use.name, content)
        return None if line is None else {**use.message, "content": line}

    def _without_images(self, message: Message) -> Message | None:
        """Put away the images of a message that shows those of our tools; return what is left, None where they stay."""
        put_away = self._put_away_image
        if put_away is None or not shows_images(message):
            return None
        parts = [_without_image(part, put_away) for part in message["content"]]
        if parts == message["content"]:
            return None
        return {**message, "content": parts}


def _without_image(part: dict[str, Any], put_away: PutAwayImage) -> dict[str, Any]:
    if part.get("type") != "image_url" or len(part["image_url"]["url"]) < WORTH_CLEARING:
        return part
    mime_type, _, data = part["image_url"]["url"].removeprefix("data:").partition(";base64,")
    line = put_away(Image(data, mime_type))
    return part if line is None else {"type": "text", "text": line}


class _Counted(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a prompt, and the tokens that its provider counted in it."""

    size: int
    tokens: int

    def tokens_at(self, size: int) -> int:
        """Return about how many tokens a prompt of another size has."""
        if size < self.size:
            return self.tokens * size // self.size
        return self.tokens + (size - self.size) // BYTES_PER_TOKEN


class _Use(msgspec.Struct, frozen=True, gc=False):
    """The result of one call in a history."""

    place: int
    id: str
    name: str | None
    message: dict[str, Any]


class _Cleared(msgspec.Struct, frozen=True, gc=False):
    """A history in which something was cleared."""

    messages: Sequence[Message]
    count: int
    size: int
    """How many bytes it has fewer."""


def size_of(message: Message) -> int:
    """Return the bytes of a message, without the data of images and files."""
    data = bytes(message) if isinstance(message, msgspec.Raw) else _encode(message)
    if b"base64," not in data:
        return len(data)
    return len(_DATA.sub(b"", data)) + IMAGE_BYTES * len(_DATA.findall(data))


def holds_summary(messages: Sequence[Message]) -> bool:
    """True if a history may have a summary in place of earlier messages."""
    for message in messages:
        if isinstance(message, msgspec.Raw):
            if MARK.encode() in bytes(message):
                return True
        elif message.get("role") == "user" and MARK in _words(message):
            return True
    return False


def _results_in(messages: Sequence[Message], *, made_here: bool = False) -> Iterator[_Use]:
    """Yield the results of calls, oldest first. `made_here`: without those in messages that came undecoded from a client."""
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        if made_here and isinstance(message, msgspec.Raw):
            continue
        fields = raw_json.read(message)
        for call in fields.get("tool_calls") or ():
            function = call.get("function") or call.get("custom") or {}
            names[str(call.get("id"))] = str(function.get("name"))
        if fields.get("role") == "tool":
            id = str(fields.get("tool_call_id"))
            yield _Use(place, id, names.get(id), fields)


def _newest_turn(messages: Sequence[Message]) -> int:
    """Return the place of the last message with calls."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if not isinstance(message, msgspec.Raw) and message.get("tool_calls"):
            return place
    return len(messages)


def _without_arguments(messages: Sequence[Message], calls: set[str]) -> dict[int, Message]:
    changed: dict[int, Message] = {}
    for place, message in enumerate(messages):
        fields = raw_json.read(message)
        of_message = fields.get("tool_calls") or ()
        if any(call.get("id") in calls and "function" in call for call in of_message):
            # The blocks of its provider have the arguments too.
            shorter = {name: value for name, value in fields.items() if name not in (BLOCKS, ITEMS)}
            changed[place] = {**shorter, "tool_calls": [_without_input(call, calls) for call in of_message]}
    return changed


def _without_input(call: Mapping[str, Any], calls: set[str]) -> Mapping[str, Any]:
    if call.get("id") in calls and "function" in call:
        return {**call, "function": {**call["function"], "arguments": NO_ARGUMENTS}}
    return call


def _without_thinking(messages: Sequence[Message], rule: ClearThinking) -> _Cleared | None:
    if rule.keep is None:
        return None
    thinking = [place for place, message in enumerate(messages) if _thinks(message)]
    older = thinking[: len(thinking) - rule.keep] if rule.keep else thinking
    changed: dict[int, Message] = {}
    for place in older:
        fields = raw_json.read(messages[place])
        changed[place] = {name: value for name, value in fields.items() if name not in _THOUGHTS and name != BLOCKS}
    return _cleared(messages, changed, len(changed))


def _thinks(message: Message) -> bool:
    if isinstance(message, msgspec.Raw):
        data = bytes(message)
        if not any(f'"{name}"'.encode() in data for name in _THOUGHTS):
            return False
    fields = raw_json.read(message)
    if fields.get("role") != "assistant":
        return False
    return any(fields.get(name) for name in _THOUGHTS)


def _cleared(messages: Sequence[Message], changed: Mapping[int, Message], count: int) -> _Cleared | None:
    if not changed:
        return None
    size = sum(size_of(messages[place]) - size_of(shorter) for place, shorter in changed.items())
    return _Cleared([changed.get(place, message) for place, message in enumerate(messages)], count, size)


def _parts(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message], Sequence[Message]]:
    """Return the instructions at the beginning, what follows, and the user's message at the end, if it is the last."""
    first = next(
        (place for place, message in enumerate(messages) if _role(message) not in _INSTRUCTIONS), len(messages)
    )
    if len(messages) > first and _role(messages[-1]) == "user":
        return messages[:first], messages[first:-1], messages[-1:]
    return messages[:first], messages[first:], ()


def _role(message: Message) -> Any:
    return raw_json.read(message).get("role")


def _behind(text: str, message: Message) -> dict[str, Any]:
    """Return the user's message with a text before it, because models expect the roles to alternate."""
    fields = raw_json.read(message)
    content = fields.get("content")
    if isinstance(content, list):
        return {**fields, "content": [{"type": "text", "text": text}, *content]}
    return {**fields, "content": text + str(content or "")}


def _last_words(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if _role(message) == "user" and (words := _words(message)):
            if len(words) > LAST_WORDS:
                return words[:LAST_WORDS] + " […]"
            return words
    return ""


def _words(message: Message) -> str:
    content = raw_json.read(message).get("content")
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content or () if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
