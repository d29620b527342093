"""Turns an MCP result into an outcome: text, images, and a description of everything else."""

from collections.abc import Iterator

import msgspec

from callgate.calls.outcome import Failed, FailureKind, File, Image, Outcome, Returned
from callgate.conversation.readable_content import IMAGE_TYPES, decoded_text, is_text_type
from callgate.tools.kinds.mcp.wire import INPUT_REQUIRED, NOBODY_HERE, Content, Resource, RpcAnswer
from callgate.tools.results import described

MAX_FILES = 16
"""Sounds and resources of one result; further ones are described."""
FOR_USER = "[a part of this result is for the user only, and not shown here]"


def outcome_of(
    answer: RpcAnswer, *, with_structured: bool = False, with_files: bool = False, reader: str = ""
) -> Outcome:
    """Turn an answer into an outcome for the model. The toolbox bounds its size. `with_structured`: also with its content for
    programs, where it has some; `with_files`: with sounds and resources as they are, which the text describes otherwise. `reader`: the tool that reads what links lead to; empty where there is none."""
    if answer.error is not None:
        return Failed(answer.error.message or f"The tool's server answered with error {answer.error.code}.")
    result = answer.result
    if result is None:
        return Failed("The tool's server sent an answer without a result.")
    if result.kind == INPUT_REQUIRED:
        return Failed(NOBODY_HERE, FailureKind.REFUSED)
    for_model = result.content
    is_all = not any(map(_is_for_user_alone, for_model))
    if not is_all:
        for_model = [piece for piece in for_model if not _is_for_user_alone(piece)]
    files: tuple[File, ...] = ()
    if with_files:
        files = tuple(file for piece in for_model if (file := _file_of(piece)) is not None)[:MAX_FILES]
        for_model = [piece for piece in for_model if _file_of(piece) not in files]
    if result.contents:
        for_model = [*for_model, *map(_of_resource, result.contents)]
    texts, images = _read(for_model, reader)
    if not is_all:
        texts.append(FOR_USER)
    text = "\n".join(texts)
    if not (texts or images or files) and bytes(
        result.structured
    ):  # the same content for programs, used if there is no other
        text = msgspec.json.format(result.structured, indent=-1).decode("utf-8", "replace")
    if result.is_error:
        return Failed(text or "The tool failed and did not say why.")
    structured = result.structured if with_structured and bytes(result.structured) else None
    return Returned(text, images=images, cut_bytes=answer.missing, structured=structured, files=files)


def outcome_fast(answer: RpcAnswer) -> Returned | None:
    """Return the outcome of a result that is one text for everybody. Equals `outcome_of` without its options for every answer of
    which `for_user` has nothing, or returns None. It takes a fifth of the time."""
    result = answer.result
    if result is None or answer.missing or result.is_error or result.contents or result.kind == INPUT_REQUIRED:
        return None
    if len(result.content) != 1:
        return None
    piece = result.content[0]
    if piece.type != "text" or piece.annotations is not None:
        return None
    return Returned(piece.text or "")


def for_user(answer: RpcAnswer) -> str:
    """Return what an answer has for the user alone."""
    if answer.result is None:
        return ""
    texts, images = _read([piece for piece in answer.result.content if _is_for_user_alone(piece)], "")
    return "\n".join([*texts, *(described(image.mime_type, _size(image.data)) for image in images)])


def _is_for_user_alone(piece: Content) -> bool:
    return piece.annotations is not None and piece.annotations.audience == ["user"]


def _of_resource(resource: Resource) -> Content:
    return Content(type="resource", resource=resource)


def _read(content: list[Content], reader: str) -> tuple[list[str], tuple[Image, ...]]:
    texts: list[str] = []
    images: list[Image] = []
    for piece in content:
        if piece.type == "text":
            texts.append(piece.text or "")
            continue
        for part in _parts(piece, reader):
            if isinstance(part, Image):
                images.append(part)
            else:
                texts.append(part)
    return texts, tuple(images)


def _file_of(piece: Content) -> File | None:
    """Return what is neither text nor image."""
    match piece:
        case Content(type="audio", data=str(data)):
            return File(kind="audio", mime_type=piece.mime_type or "audio/wav", data=data)
        case Content(type="resource", resource=Resource(uri=str(uri)) as resource) if uri:
            mime_type = resource.mime_type or ""
            return File(kind="resource", mime_type=mime_type, data=resource.blob or "", text=resource.text, uri=uri)
        case Content(type="resource_link", uri=str(uri)) if uri:
            return File(kind="link", mime_type=piece.mime_type or "", uri=uri, name=piece.name or uri)
        case _:
            return None


def _parts(piece: Content, reader: str) -> Iterator[str | Image]:
    match piece:
        case Content(type="image", data=str(data)):
            yield Image(data, piece.mime_type or "image")
        case Content(type="audio", data=str(data)):
            yield described(piece.mime_type or "audio", _size(data))
        case Content(type="resource", resource=Resource() as resource):
            if resource.uri:
                yield f"[{resource.uri}]"
            if resource.text is not None:
                yield resource.text
            elif resource.blob is not None and resource.mime_type in IMAGE_TYPES:
                yield Image(resource.blob, resource.mime_type or "")
            elif resource.blob is not None:
                yield _file(resource.blob, resource.mime_type or "application/octet-stream")
        case Content(type="resource_link"):
            how = f"; {reader} reads it" if reader and piece.uri else ""
            yield f"[{piece.name or 'resource'}: {piece.uri or 'without an address'}{how}]"
        case _:
            yield f"[{piece.type or 'something'} that cannot be shown]"


def _file(blob: str, mime_type: str) -> str:
    """Return the text of a file whose type is one of text, behind its type and size; of any other those alone."""
    text = decoded_text(blob) if is_text_type(mime_type.partition(";")[0].strip().lower()) else None
    if text is None:
        return described(mime_type, _size(blob))
    return f"[{mime_type}, {_size(blob)} bytes]\n{text}"


def _size(base64_text: str) -> int:
    return len(base64_text) * 3 // 4 - base64_text[-2:].count("=")
