"""Seals a model's reasoning into one opaque text that a client sends back.

Signatures are valid only for the model that made them, so the sealed text names the model and is not used for another.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from callgate.conversation.response_items import ITEMS
from callgate.conversation.turn import ThinkingBlocks
from callgate.state.sealing import NotSealedHere, Sealer
from callgate.untrusted.doors import Door, TooMuch, Untrusted
from callgate.untrusted.readers import json_reader

PURPOSE: Final = "reasoning"


class _Thought(msgspec.Struct, kw_only=True):
    model: str
    text: str
    blocks: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []


SEAL = Door(name="sealed reasoning", bytes=64 * 1024 * 1024, values=100_000)
"""Sealed here, out of what a model wrote."""
_decode = json_reader(_Thought)


class ReasoningSeal(msgspec.Struct, eq=False, kw_only=True):
    """Seals the reasoning of one model for one owner, and opens what was sealed for both."""

    _sealer: Sealer
    _owner: str
    _model: str
    not_opened: list[str] = []
    """Why each item that a client sent could not be opened."""

    def seal(self, blocks: Sequence[Mapping[str, Any]], text: str) -> str:
        """Seal reasoning. `blocks`: thinking blocks in order, and items of the Responses API."""
        thinking = ThinkingBlocks()
        items: list[dict[str, Any]] = []
        for block in blocks:
            if "item" in block:
                items.append(dict(block))
            else:
                thinking.add(block)
        thought = _Thought(model=self._model, text=text, blocks=thinking.blocks(), items=items)
        return self._sealer.seal(PURPOSE, self._owner, msgspec.json.encode(thought))

    def open(self, sealed: str) -> Mapping[str, Any] | None:
        """Return fields of an assistant message; none where the reasoning is another model's. None, with a note why, where it
        cannot be opened."""
        try:
            thought = _decode(Untrusted(self._sealer.open(PURPOSE, self._owner, sealed), SEAL).open())
        except NotSealedHere as error:
            self.not_opened.append(str(error))
            return None
        except TooMuch as error:
            self.not_opened.append(str(error))
            return None
        except (msgspec.DecodeError, RecursionError):
            self.not_opened.append("sealed by another version of this server")
            return None
        if thought.model != self._model:
            return {}
        fields: dict[str, Any] = {}
        if thought.text:
            fields["reasoning_content"] = thought.text
        if thought.blocks:
            fields["thinking_blocks"] = thought.blocks
        if thought.items:
            fields[ITEMS] = thought.items
        return fields
