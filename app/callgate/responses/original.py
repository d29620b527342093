"""Keeps what of a response's request only the Responses API has, for a model behind that API; for any other it is named."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from callgate.conversation.ports import JudgedFields, Message
from callgate.untrusted.readers import json_reader

ONLY_HERE: Final = frozenset("access_programs context_management image truncation".split())
"""Fields that Chat Completions does not have. What it has as well, or no API that we know, goes on as a field of the chat."""
IN_CHATS: Final = frozenset({"effort", "summary", "generate_summary"})
"""The fields of `reasoning` that a chat has."""
USUAL: Final[Mapping[str, bytes]] = {"truncation": b'"disabled"'}
"""Values that say what is done anyway."""
_NULL: Final = b"null"

_object = json_reader(dict[str, msgspec.Raw] | None)
_encode = msgspec.json.Encoder().encode


class OriginalResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to the request that a chat becomes."""

    fields: JudgedFields
    """Its own fields, and `tools` that its provider runs. They were judged when they were read."""
    functions: Mapping[str, Mapping[str, Any]] = {}
    """What its functions have beside the fields of a chat's, by their names in the chat."""
    native: Mapping[str, Mapping[str, Any]] = {}
    """The tools for which some of its functions stand, by the names of those."""
    unplaced: Sequence[str] = ()
    api: Literal["responses"] = "responses"
    is_chat: bool = True
    betas: Sequence[str] = ()
    foreign: Sequence[tuple[str, str]] = ()

    def judged(self, fields: JudgedFields) -> "OriginalResponse":
        return self

    def blocks_of(self, message: Message) -> tuple[str, Sequence[Any]] | None:
        return None


def own_fields(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the fields of a body that only this API has, as far as they say anything."""
    if "reasoning" not in fields and ONLY_HERE.isdisjoint(fields):
        return {}
    own = {name: fields[name] for name in ONLY_HERE & fields.keys() if _says(name, fields[name])}
    if "reasoning" in fields:
        reasoning = _object(fields["reasoning"]) or {}
        further = {name: value for name, value in reasoning.items() if name not in IN_CHATS and _says(name, value)}
        if further:
            own["reasoning"] = msgspec.Raw(_encode(further))
    return own


def names_of(own: Mapping[str, msgspec.Raw]) -> Sequence[str]:
    """Return the names of such fields for a warning."""
    names = [name for name in own if name != "reasoning"]
    if "reasoning" in own:
        names += [f"reasoning.{name}" for name in _object(own["reasoning"]) or ()]
    return names


def _says(name: str, value: msgspec.Raw) -> bool:
    return bytes(value).strip() not in (_NULL, USUAL.get(name))
