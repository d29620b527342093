"""Translates the messages of a Messages request into those of a chat.

In the Messages API consecutive messages of one role are one turn, and tool results are at the beginning of a user's turn. In
Chat Completions each result is a message, and calls are a field of the assistant's message.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from callgate.conversation.errors import ChatError
from callgate.conversation.hidden_history import ReturnedMessage
from callgate.conversation.readable_content import LEFT_OUT, PDF, file_part, image_part, left_out_part, text_part
from callgate.hosted.returned import ReturnedCall, key_in
from callgate.hosted.rows import OUR_BLOCK
from callgate.messages.context_edits import text_of_summary
from callgate.messages.hosted_blocks import NOT_KNOWN, RESULTS, text_of
from callgate.messages.request_schema import (
    IN_RESULTS,
    NEEDS,
    MessageBlock,
    MessagesMessage,
    ToolOfListing,
    blocks_in,
    listing_in,
    wrong,
)
from callgate.untrusted.readers import NULL, json_reader, read_value

OUR_SIGNATURE: Final = "callgate.unsigned."
"""The prefix of our signatures, for thinking of models that do not sign it. Such thinking is not sent to a provider that
checks signatures."""
OUR_SERVER: Final = "callgate"
"""The name of the server of all our tools, in blocks."""
OUR_CALL: Final = "mcptoolu_"
"""The prefix of our calls' ids where a client is shown them."""
IMAGES: Final = "Images returned by the tools above:"
FILES: Final = "Files returned by the tools above:"

LISTING: Final = "mcp_tool_listing"

_encode = msgspec.json.Encoder().encode


class BlockOrigin(msgspec.Struct, frozen=True, gc=False):
    """The place in the request from which a message of the chat was made."""

    message: int
    blocks: tuple[int, ...] | None
    """None where it is the text of the whole message."""


class History(msgspec.Struct):
    """A chat's messages, and their origins."""

    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    origins: list[list[BlockOrigin] | None] = msgspec.field(default_factory=list)
    """Of each message: empty if it is from another field, None if its content was changed."""
    foreign: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """Places and types of blocks that Chat Completions cannot express."""
    left_out: list[str] = msgspec.field(default_factory=list)
    """The types of blocks that were replaced by a line which says so."""
    reads_files: bool = False
    """Whether its model takes PDFs."""
    reads_compactions: bool = False
    """Whether its model reads its own `compaction` blocks."""
    shown: set[str] = msgspec.field(default_factory=set)
    """The ids of our calls that the client was shown and sent back."""

    hosted: list[ReturnedCall] = msgspec.field(default_factory=list)
    """The calls of declared tools that the client was shown and sent back."""
    hosted_ids: set[str] = msgspec.field(default_factory=set)
    """Their ids."""

    listings: dict[str, list[ToolOfListing]] = msgspec.field(default_factory=dict)
    """The tools of MCP servers, as earlier answers listed them, by the names of the servers."""

    is_altered: bool = False
    """Whether it has blocks that this server made, which no provider knows."""

    def add(self, message: dict[str, Any], origin: list[BlockOrigin] | None) -> None:
        self.messages.append(message)
        self.origins.append(origin)


class _Placed(msgspec.Struct, gc=False):
    """A block and its place."""

    block: MessageBlock
    message: int
    place: int | None

    @property
    def where(self) -> str:
        return f"messages.{self.message}.content.{self.place or 0}"


def unsigned(thinking: str) -> str:
    """Return a signature for thinking that its model did not sign."""
    return OUR_SIGNATURE + hashlib.sha256(thinking.encode(errors="replace")).hexdigest()[:32]


def as_chat(
    system: str | Sequence[MessageBlock] | None,
    messages: Sequence[MessagesMessage],
    *,
    reads_files: bool = False,
    reads_compactions: bool = False,
) -> History:
    """Return the messages for a model of chats. What such a model cannot read is replaced by a line that says so, because it
    stays in the conversation: refused, it would end it."""
    history = History(reads_files=reads_files, reads_compactions=reads_compactions)
    if system:
        if isinstance(system, str):
            text = system
        else:
            text = "\n\n".join(block.text or "" for block in system)
        history.add({"role": "system", "content": text}, [])
    open_calls: dict[str, str] = {}
    for role, placed_blocks in _turns(messages, _after_summary(messages, history)):
        if not (blocks := _behind_summary(history, placed_blocks)):
            continue
        if role == "user":
            open_calls = _user(history, blocks, open_calls)
        elif open_calls:
            raise _unanswered(open_calls)
        elif role == "system":
            history.add(
                {"role": "system", "content": "\n\n".join(placed.block.text or "" for placed in blocks)}, _from(blocks)
            )
        else:
            open_calls = _assistant(history, blocks)
    if open_calls:
        raise _unanswered(open_calls)
    return history


def _after_summary(messages: Sequence[MessagesMessage], history: History) -> tuple[int, int]:
    """Return the place of the last summary, which stands for all that is before it: a message, and a block of it."""
    for index in range(len(messages) - 1, -1, -1):
        content = messages[index].content
        if isinstance(content, str):
            continue
        for place in range(len(content) - 1, -1, -1):
            if _is_summary(content[place], history):
                return index, place
    return 0, 0


def _is_summary(block: MessageBlock, history: History) -> bool:
    """True for a `compaction` block that is read here: of any provider for a model of chats, else one that was made here."""
    if block.type != "compaction" or not isinstance(_decoded(block.content), str):
        return False
    return not history.reads_compactions or _is_ours(block)


def _is_ours(block: MessageBlock) -> bool:
    return (block.signature or "").startswith(OUR_SIGNATURE)


def _turns(messages: Sequence[MessagesMessage], start: tuple[int, int]) -> Iterator[tuple[str, list[_Placed]]]:
    """Yield the turns from a place on: a message, and a block of it."""
    first, first_block = start
    role = ""
    blocks = list[_Placed]()
    for index, message in enumerate(messages[first:], first):
        if message.role != role:
            if blocks:
                yield role, blocks
            role = message.role
            blocks = []
        content = message.content
        if isinstance(content, str):
            blocks.append(_Placed(MessageBlock("text", text=content), index, None))
        else:
            begin = first_block if index == first else 0
            blocks += [_Placed(block, index, place) for place, block in enumerate(content) if place >= begin]
    if blocks:
        yield role, blocks


# The user's turns ------------------------------------------------------------------------------------------------------


def _user(history: History, blocks: Sequence[_Placed], open_calls: dict[str, str]) -> dict[str, str]:
    """Add the tool results, then the rest of the turn. Returns the calls that are still unanswered: none."""
    images: list[dict[str, Any]] = []
    answered: set[str] = set()
    for placed in blocks:
        if placed.block.type != "tool_result":
            continue
        id = placed.block.tool_use_id or ""
        if id not in open_calls:
            raise wrong(
                placed.where,
                f"unexpected `tool_use_id` found in `tool_result` blocks: {id[:100]}. Each `tool_result` block must have a "
                "corresponding `tool_use` block in the previous message.",
            )
        if id in answered:
            raise wrong(
                placed.where,
                f"each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id[:100]}",
            )
        answered.add(id)
        history.add({"role": "tool", "tool_call_id": id, "content": _result(history, placed, images)}, _from([placed]))
    if open_calls.keys() - answered:
        raise _unanswered({id: where for id, where in open_calls.items() if id not in answered})
    others = [placed for placed in blocks if placed.block.type != "tool_result"]
    parts = [part for placed in others for part in _parts(history, placed.block, placed.where)]
    if images:
        if any(part["type"] == "file" for part in images):
            intro = FILES
        else:
            intro = IMAGES
        history.add({"role": "user", "content": [{"type": "text", "text": intro}, *images]}, [])
    if others:
        is_text = all(part["type"] == "text" for part in parts)
        content = "\n\n".join(part["text"] for part in parts) if is_text else parts
        history.add({"role": "user", "content": content}, _from(others))
    return {}


def _result(history: History, placed: _Placed, images: list[dict[str, Any]]) -> str:
    where = f"{placed.where}.tool_result.content"
    content = blocks_in(placed.block.content, where)
    if isinstance(content, str):
        text = content
    else:
        texts: list[str] = []
        for place, block in enumerate(content):
            for part in _parts_of_result(history, block, f"{where}.{place}"):
                if part["type"] == "text":
                    texts.append(part["text"] or "")
                else:
                    images.append(part)
        text = "\n".join(texts)
    if placed.block.is_error and not text.lower().startswith("error"):
        return f"Error: {text}"
    return text


def _parts_of_result(history: History, block: MessageBlock, where: str) -> list[dict[str, Any]]:
    """The same as `_parts`, for a block in another. One that is wrong is left out: a tool made it."""
    try:
        return _parts(history, block, where)
    except ChatError:
        return [_left_out(history, block)]


class _Source(msgspec.Struct, gc=False):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: msgspec.Raw = msgspec.Raw()


_source = json_reader(_Source)


def _parts(history: History, block: MessageBlock, where: str) -> list[dict[str, Any]]:
    """Convert a block of the user's turn, or of a result in it, to parts of a chat message."""
    match block.type:
        case "text":
            return [text_part(block.text or "")]
        case "image":
            return _image(history, block, where)
        case "document":
            return _document(history, block, where)
        case "search_result":
            return _search_result(history, block, where)
        case _:
            return [_left_out(history, block)]


def _left_out(history: History, block: MessageBlock) -> dict[str, Any]:
    history.left_out.append(block.type)
    return left_out_part(block.type, _title(block))


def _title(block: MessageBlock) -> str:
    title = _decoded(block.title)
    if isinstance(title, str):
        return title
    return ""


def _decoded(raw: msgspec.Raw) -> Any:
    return read_value(raw if bytes(raw) else NULL)


def _image(history: History, block: MessageBlock, where: str) -> list[dict[str, Any]]:
    try:
        source = _source(block.source)
    except msgspec.DecodeError as error:
        raise wrong(f"{where}.image.source", str(error).partition(" - at ")[0]) from None
    if source.type == "url" and source.url:
        return [image_part(source.url) or _left_out(history, block)]
    if source.type == "base64" and source.data and source.media_type:
        image = image_part(f"data:{source.media_type};base64,{source.data}")
        return [image or _left_out(history, block)]
    if source.type in ("url", "base64"):
        if source.type == "url":
            missing = "url"
        elif source.media_type:
            missing = "data"
        else:
            missing = "media_type"
        raise wrong(f"{where}.image.source.{source.type}.{missing}", "Field required")
    if source.type == "file":
        history.foreign.append((f"{where}.image.source", source.type))
    return [_left_out(history, block)]


def _document(history: History, block: MessageBlock, where: str) -> list[dict[str, Any]]:
    try:
        source = _source(block.source)
    except msgspec.DecodeError:
        return [_left_out(history, block)]
    title = _title(block)
    match source.type:
        case "text" if source.data is not None:
            return [text_part(f"{title}\n\n{source.data}" if title else source.data)]
        case "content":
            inner = [
                part
                for inner_block in _blocks_of(source.content)
                for part in _parts_of_result(history, inner_block, where)
            ]
            if title:
                return [text_part(title), *inner]
            return inner
        case "base64" if source.data and source.media_type:
            if title and source.media_type == PDF and not title.lower().endswith(".pdf"):
                name = f"{title}.pdf"
            else:
                name = title
            data = f"data:{source.media_type};base64,{source.data}"
            if (part := file_part(data, name, reads_files=history.reads_files)) is not None:
                return [part]
        case "file":
            history.foreign.append((f"{where}.document.source", "file"))  # the operator's, at the provider
    return [_left_out(history, block)]


def _search_result(history: History, block: MessageBlock, where: str) -> list[dict[str, Any]]:
    address = _decoded(block.source)
    inner = [
        part for inner_block in _blocks_of(block.content) for part in _parts_of_result(history, inner_block, where)
    ]
    head = [text for text in (_title(block), address) if isinstance(text, str) and text]
    return [text_part("\n".join([*head, *(part["text"] for part in inner if part["type"] == "text")]))]


def _blocks_of(content: msgspec.Raw) -> list[MessageBlock]:
    """Return the blocks in a block, one level of them: what would nest further is left out."""
    try:
        blocks = blocks_in(content, "")
    except ChatError:
        return [MessageBlock("content")]
    if isinstance(blocks, str):
        return [MessageBlock("text", text=blocks)]
    return [
        block_found if block_found.type in IN_RESULTS else MessageBlock(block_found.type, title=block_found.title)
        for block_found in blocks
    ]


# The assistant's turns -------------------------------------------------------------------------------------------------


class _AssistantMessage(msgspec.Struct):
    """An assistant message while it is assembled, and the results of our calls in it."""

    texts: list[str] = msgspec.field(default_factory=list)
    thoughts: list[str] = msgspec.field(default_factory=list)
    signed: list[dict[str, Any]] = msgspec.field(default_factory=list)
    calls: list[dict[str, Any]] = msgspec.field(default_factory=list)
    results: list[dict[str, Any]] = msgspec.field(default_factory=list)
    placed: list[_Placed] = msgspec.field(default_factory=list)
    hosted: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Those of its calls that stood for declared tools and have no answer yet, by id."""
    is_returned: bool = False
    """Whether its calls are those of declared tools, which are dropped where the same calls are stored."""

    def take_result(self, history: History, placed: _Placed) -> None:
        """Take the block that answers a call of a declared tool."""
        call_id = placed.block.tool_use_id or ""
        if call_id not in self.hosted:
            kind = placed.block.type
            raise wrong(placed.where, f"`{kind}` without a `server_tool_use` before it: {call_id[:100]}")
        self.answer(history, call_id, text_of(placed.block.content))

    def answer(self, history: History, call_id: str, text: str) -> None:
        """Add the answer to a call of a declared tool."""
        answer = ReturnedMessage(role="tool", tool_call_id=call_id, content=text)
        self.results.append(answer)
        history.hosted.append(ReturnedCall(key=key_in(call_id), function=self.hosted.pop(call_id), answer=answer))

    def add_to(self, history: History) -> None:
        if not self.placed:
            return
        for call_id in [*self.hosted]:  # its result was left out, by the client or on the way
            self.answer(history, call_id, NOT_KNOWN)
        text = "".join(self.texts)
        if not text and not self.calls and any(placed.block.type not in NEEDS for placed in self.placed):
            text = f"[{LEFT_OUT}]"  # not empty, which providers refuse
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if self.calls else "")}
        if self.thoughts:
            message["reasoning_content"] = "".join(self.thoughts)
        if self.signed:
            message["thinking_blocks"] = self.signed
        if self.calls:
            message["tool_calls"] = self.calls
        if self.is_returned:
            message = ReturnedMessage(message)
        history.add(message, _from(self.placed))
        for result in self.results:
            history.add(result, None)


def _assistant(history: History, blocks: Sequence[_Placed]) -> dict[str, str]:
    """Add an assistant's turn; return the calls that the client has to answer, with their places."""
    open_calls: dict[str, str] = {}
    ours: dict[str, str] = {}
    message = _AssistantMessage()
    for placed in _without_listings(history, blocks):
        block = placed.block
        if is_ours(block) and block.type in RESULTS:
            message.take_result(history, placed)
            continue
        if block.type == "mcp_tool_result":
            # The answer to a call of ours.
            call_id = placed.block.tool_use_id or ""
            if ours.pop(call_id, None) is None:
                raise wrong(placed.where, f"`mcp_tool_result` without a `mcp_tool_use` before it: {call_id[:100]}")
            message.results.append(
                {
                    "role": "tool",
                    "tool_call_id": call_id.removeprefix(OUR_CALL),
                    "content": _result(history, placed, []),
                }
            )
            continue
        if message.results or (message.hosted and block.type == "tool_use"):
            message.add_to(history)
            message = _AssistantMessage()
        message.placed.append(placed)
        match block.type:
            case "text":
                message.texts.append(block.text or "")
            case "thinking" | "redacted_thinking":
                _think(history, message, block)
            case "tool_use" | "mcp_tool_use":
                id = block.id or ""
                if id in open_calls or id in ours:
                    raise wrong(placed.where, "`tool_use` ids must be unique")
                (open_calls if block.type == "tool_use" else ours)[id] = placed.where
                message.calls.append(_call(block))
                if block.type == "mcp_tool_use":
                    history.is_altered = True
                    history.shown.add(id.removeprefix(OUR_CALL))
            case _:
                _of_hosted(history, message, placed)
    if ours:
        raise wrong(next(iter(ours.values())), "`mcp_tool_use` without its `mcp_tool_result`")
    message.add_to(history)
    return open_calls


def _without_listings(history: History, blocks: Sequence[_Placed]) -> Iterator[_Placed]:
    """Yield the blocks of a turn that a model is told of; note the lists of tools among the others."""
    for placed in blocks:
        block = placed.block
        if block.type != LISTING:
            yield placed
            continue
        history.is_altered = True
        if block.mcp_server_name is not None and (tools := _listing_of(block)) is not None:
            history.listings[block.mcp_server_name] = tools


def _listing_of(block: MessageBlock) -> list[ToolOfListing] | None:
    """Return the tools of a list; None where it is not understood, so that the server is asked."""
    try:
        return listing_in(block.tools, "")
    except ChatError:
        return None


def _behind_summary(history: History, blocks: Sequence[_Placed]) -> Sequence[_Placed]:
    """Add the summary that a turn begins with, as a message of the user; return the blocks behind it."""
    first = blocks[0].block
    if not _is_summary(first, history):
        return blocks
    history.add({"role": "user", "content": text_of_summary(_decoded(first.content))}, None)
    history.is_altered = history.is_altered or _is_ours(first)
    return blocks[1:]


def is_ours(block: MessageBlock) -> bool:
    """True for a block of a call that stood for a declared tool, or of its result."""
    return (block.id or block.tool_use_id or "").startswith(OUR_BLOCK)


def _of_hosted(history: History, message: _AssistantMessage, placed: _Placed) -> None:
    """Take a call of ours, and what a summary of the conversation says; what Anthropic ran itself is left out."""
    block = placed.block
    assert block.type not in NEEDS
    if block.type == "server_tool_use" and is_ours(block):
        history.is_altered = True
        call = _call(block)
        if call["id"] in history.hosted_ids:
            raise wrong(placed.where, "`server_tool_use` ids must be unique")
        history.hosted_ids.add(call["id"])
        message.hosted[call["id"]] = call["function"]
        message.calls.append(call)
        message.is_returned = True
    elif block.type == "compaction":
        message.texts += [part.text or "" for part in _blocks_of(block.content)]
    else:
        history.left_out.append(block.type)


def _think(history: History, message: _AssistantMessage, block: MessageBlock) -> None:
    if block.type == "redacted_thinking":
        message.signed.append({"type": "redacted_thinking", "data": block.data})
        return
    assert block.thinking is not None
    assert block.signature is not None
    message.thoughts.append(block.thinking)
    if block.signature.startswith(OUR_SIGNATURE):
        history.is_altered = True
    else:
        message.signed.append({"type": "thinking", "thinking": block.thinking, "signature": block.signature})


def _call(block: MessageBlock) -> dict[str, Any]:
    arguments = _encode(block.input or {}).decode()
    id = block.id or ""
    name = block.name or ""
    if block.type == "mcp_tool_use":
        id = id.removeprefix(OUR_CALL)
        if block.server_name not in ("", OUR_SERVER):
            from callgate.callers.client_mcp import claimed_name  # of a server that a request named by its address

            name = claimed_name(str(block.server_name), name)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _unanswered(calls: dict[str, str]) -> Exception:
    where = next(iter(calls.values()))
    ids = ", ".join(calls)[:200]
    return wrong(
        where.partition(".content")[0],
        f"`tool_use` ids were found without `tool_result` blocks immediately after: {ids}. Each `tool_use` block must have a "
        "corresponding `tool_result` block in the next message.",
    )


def _from(blocks: Sequence[_Placed]) -> list[BlockOrigin]:
    blocks_by_message: dict[int, list[int] | None] = {}
    for placed in blocks:
        if placed.place is None:
            blocks_by_message[placed.message] = None
        else:
            places = blocks_by_message.setdefault(placed.message, [])
            assert places is not None
            places.append(placed.place)
    return [
        BlockOrigin(message, None if places is None else tuple(places)) for message, places in blocks_by_message.items()
    ]
