"""Reads what a client's tool returned: the `output` of a `function_call_output` or a `custom_tool_call_output`."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from callgate.conversation.readable_content import Part, file_part, image_part, left_out_part, text_part
from callgate.hosted.returned import ReturnedCall

TEXTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
INTRO: Final = {"type": "text", "text": "Returned by the tool above:"}
SHOWN: Final = "(shown in the next message)"

_encode = msgspec.json.Encoder().encode


class ReturnedContent(msgspec.Struct, eq=False, kw_only=True):
    """Outputs as messages of a chat. What the model cannot read becomes a line, and its type is noted."""

    _reads_files: Callable[[], bool] = lambda: False
    """Returns whether the model takes PDFs; called when there is one."""
    types_left_out: list[str] = []
    """The types that the client and the operator are to be told of."""
    hosted_calls: list[ReturnedCall] = []
    """The calls of declared tools that came back."""
    unheard: set[str] = set()
    """The types of items, and the fields of items, that no model is told of."""

    def read(self, output: Any) -> tuple[str, list[Part]]:
        """Return the text for the tool message, and the parts that no tool message can have."""
        if isinstance(output, str):
            return output, []
        if not isinstance(output, list):
            return "" if output is None else _as_text(output), []
        parts = [self._part(part) for part in output]
        others = [part for part in parts if part["type"] != "text"]
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        if others and not text:
            text = SHOWN
        return text, others

    def _part(self, part: Any) -> Part:
        if not isinstance(part, Mapping):
            return text_part(part if isinstance(part, str) else _as_text(part))
        kind = part.get("type")
        if not isinstance(kind, str):
            return self._left_out("part", part)
        return _readable(kind, part, reads_files=self._reads_files) or self._left_out(kind, part)

    def _left_out(self, kind: str, part: Mapping[str, Any]) -> Part:
        self.types_left_out.append(kind)
        return left_out_part(kind, _file_name(part))


def _readable(kind: str, part: Mapping[str, Any], *, reads_files: Callable[[], bool]) -> Part | None:
    """Return the part for a model of chats; None if there is none. Files by id are the operator's, and never sent on."""
    match part:
        case {"text": str(text)} if kind in TEXTS:
            return text_part(text)
        case {"refusal": str(text)} if kind == "refusal":
            return text_part(text)
        case {"image_url": str(url)} if kind == "input_image":
            image = image_part(url)
            if image is not None and isinstance(detail := part.get("detail"), str):
                image["image_url"]["detail"] = detail
            return image
        case {"file_data": str(data)} if kind == "input_file":
            return file_part(data, _file_name(part), reads_files=reads_files())
    return None


def _file_name(part: Mapping[str, Any]) -> str:
    name = part.get("filename")
    return name if isinstance(name, str) else ""


def _as_text(value: Any) -> str:
    return _encode(value).decode()
