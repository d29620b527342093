"""What a model of chats can read of the content that a client's tool returned.

Such content stays in the conversation: refused, by us or by the provider, it would end it. What no provider would take is therefore
replaced by a line that says so.
"""

import binascii
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from callgate.conversation import raw_json
from callgate.conversation.ports import Message, ModelRequest

LEFT_OUT: Final = "left out: this model cannot read it"
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The types that all providers take."""
PDF: Final = "application/pdf"
_PDF_BEGINS: Final = "JVBERi"
"""`%PDF` in base64."""
_TEXT_TYPES: Final = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})
_TEXT_SUFFIXES: Final = ("+json", "+xml", "+yaml")
_TITLE: Final = 200
_CONTENT: Final = {
    "text": "text", "file": "file", "input_audio": "input_audio", "document": "source", "image": "source",
    "audio_url": "audio_url", "video_url": "video_url", "image_url": "image_url", "tool_result": "content",
}  # fmt: skip
"""The types of parts that translations know, and the field that each needs."""

Part = dict[str, Any]


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def left_out_part(kind: str, name: str = "") -> Part:
    named = f" {name[:_TITLE]!r}" if name else ""
    return text_part(f"[{kind[:40]}{named} {LEFT_OUT}]")


def image_part(url: str) -> Part | None:
    """Return the part of an image at an address or in a `data:` URL; None if no provider would take it."""
    if url[:8].lower().startswith(("http://", "https://")):
        return _image(url)
    media_type, data = _data_of(url)
    if media_type == "image/jpg":
        media_type = "image/jpeg"
    if media_type not in IMAGE_TYPES or not is_base64(data):
        return None
    return _image(f"data:{media_type};base64,{data}")


def file_part(file_data: str, filename: str, *, reads_files: bool) -> Part | None:
    """Return the part of a file, as a `data:` URL or in base64 alone; None if the model cannot read it. A text becomes text."""
    media_type, data = _data_of(file_data)
    if not data:
        data = "".join(file_data.split())
        media_type = PDF if data.startswith(_PDF_BEGINS) else ""
    if media_type in IMAGE_TYPES:
        return image_part(file_data)
    if is_text_type(media_type):
        text = decoded_text(data)
        if text is None:
            return None
        return text_part(f"{filename[:_TITLE]}\n\n{text}" if filename else text)
    if media_type != PDF or not reads_files or not is_base64(data):
        return None
    name = filename or "document.pdf"
    return {"type": "file", "file": {"filename": name, "file_data": f"data:{PDF};base64,{data}"}}


def with_readable_results(request: ModelRequest) -> ModelRequest:
    """Return a chat whose messages of tools have content that a translation can read. The same where all have."""
    messages = [_readable_result(message) for message in request.messages]
    if all(new is old for new, old in zip(messages, request.messages, strict=True)):
        return request
    return replace(request, messages=messages)


def _readable_result(message: Message) -> Message:
    if isinstance(message, msgspec.Raw) and b'"tool"' not in bytes(message):
        return message
    fields = raw_json.read(message)
    if fields.get("role") != "tool" or isinstance(content := fields.get("content"), str):
        return message
    if content is None:
        return {**fields, "content": ""}
    if not isinstance(content, list):
        return message
    parts = [_readable_part(part) for part in content]
    if parts == content:
        return message
    return {**fields, "content": parts}


def _readable_part(part: Any) -> Any:
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "image_url", "image_url": str(url)}:
            if image_part(url) is not None:
                return part
            return left_out_part("image_url")
        case {"type": str(kind), **fields} if not _has_content(kind, fields):
            return left_out_part(kind)
    return part


def _has_content(kind: str, fields: Mapping[Any, Any]) -> bool:
    """Whether a part of a tool's message is of a type that translations know, with what that type needs."""
    name = _CONTENT.get(kind)
    if name is None:
        return False
    if name == "text":
        return isinstance(fields.get(name), str)
    return isinstance(fields.get(name), dict | list)


def is_base64(data: str) -> bool:
    return bool(data) and _bytes_of(data) is not None


def _image(url: str) -> Part:
    return {"type": "image_url", "image_url": {"url": url}}


def _data_of(url: str) -> tuple[str, str]:
    """Return the type and the base64 of a `data:` URL, both empty of anything else."""
    head, _, data = url.partition(",")
    scheme, _, described = head.partition(":")
    media_type, *parameters = described.lower().split(";")
    if scheme.lower() != "data" or "base64" not in parameters:
        return "", ""
    return media_type.strip(), "".join(data.split())


def _bytes_of(data: str) -> bytes | None:
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return None


def is_text_type(media_type: str) -> bool:
    """True for the types of files that are read as text."""
    return media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(_TEXT_SUFFIXES)


def decoded_text(data: str) -> str | None:
    """Return the text of a file in base64; None if it is no text in UTF-8."""
    content = _bytes_of(data)
    try:
        if content is None:
            return None
        return content.decode()
    except UnicodeDecodeError:
        return None
