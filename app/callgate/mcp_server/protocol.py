"""The messages of MCP as a server reads and writes them: JSON-RPC, the revisions, and what headers have to say of a body.

Since 2026-07-28 each request says its revision and what its client can do, and headers repeat what a body says, so that
intermediaries need not read it. Before, a client says so once, in `initialize`, which nothing is kept of here.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from callgate import __version__
from callgate.api.mcp_errors import error_fields
from callgate.api.strict_json import Fields, split
from callgate.conversation.errors import ChatError
from callgate.untrusted.doors import Opened
from callgate.untrusted.readers import READ_ERRORS, json_reader

MODERN: Final = ("2026-07-28",)
"""Revisions whose requests stand alone."""
LEGACY: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Those that begin with `initialize`, the newest first."""
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
"""Until 2025-11-25; `INVALID_PARAMS` since."""
HEADER_MISMATCH: Final = -32020
UNSUPPORTED_VERSION: Final = -32022
STATUSES: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
"""The status of HTTP for an error, at a revision whose requests stand alone; before, all were 200 but for what is no request."""
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
NAMED: Final[Mapping[str, str]] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that `Mcp-Name` repeats, by method."""
WHO: Final = {"name": "callgate", "title": "Callgate", "version": __version__}
MAX_SHOWN: Final = 100
"""Characters of a client's word in an error."""
_ROUTING: Final = (VERSION_HEADER.encode(), METHOD_HEADER.encode(), NAME_HEADER.encode())
_WRAPPED: Final = re.compile(r"=\?base64\?(?P<payload>.*)\?=")

Id = int | str
encode: Final = msgspec.json.Encoder().encode


class RpcFailure(Exception):
    """An error as the protocol has it."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What a message is, whatever its method."""

    id: Id | None = None
    """None for a notification."""
    method: str = ""
    """Empty for an answer, which nobody here has asked for."""
    params: Fields = {}
    """Undecoded."""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside the parameters of a request."""

    version: Any = msgspec.field(default=None, name=PROTOCOL_VERSION)
    capabilities: Any = msgspec.field(default=None, name=CLIENT_CAPABILITIES)
    progress_token: Id | None = msgspec.field(default=None, name="progressToken")
    idempotency_key: str | None = msgspec.field(default=None, name="io.callgate/idempotency-key")
    user: str = msgspec.field(default="", name="io.callgate/user")


NO_META: Final = Meta()
_read_id = json_reader(Id)
_read_text = json_reader(str)
_read_meta = json_reader(Meta)
_OBJECT: Final = b"{"


def envelope_of(body: Opened, max_depth: int) -> Envelope:
    """Read one message. Raises `RpcFailure`."""
    try:
        fields = split(body, max_depth)
    except ChatError as error:
        code = INVALID_REQUEST if error.code in {"invalid_type", "duplicate_parameter"} else PARSE_ERROR
        raise RpcFailure(code, f"A message is one JSON-RPC object. {error.message}") from None
    try:
        if _read_text(fields["jsonrpc"]) != "2.0":
            raise RpcFailure(INVALID_REQUEST, '`jsonrpc` is "2.0".')
        id = _read_id(fields["id"]) if "id" in fields else None
        method = _read_text(fields["method"]) if "method" in fields else ""
    except (KeyError, *READ_ERRORS):
        raise RpcFailure(
            INVALID_REQUEST, "`jsonrpc`, `id` or `method` is missing, or is not what it should be."
        ) from None
    params: Fields = {}
    if "params" in fields:
        if bytes(fields["params"])[:1] != _OBJECT:
            raise RpcFailure(INVALID_REQUEST, "`params` is an object.")
        params = _fields_of(fields["params"], max_depth)
    return Envelope(id=id, method=method, params=params)


def meta_of(params: Fields) -> Meta | None:
    """Return what stands beside the parameters, None where it is missing or no object. Raises `RpcFailure`."""
    raw = params.get("_meta")
    if raw is None or bytes(raw)[:1] != _OBJECT:
        return None
    try:
        return _read_meta(raw)
    except READ_ERRORS:
        raise RpcFailure(INVALID_PARAMS, "A field of `_meta` is not what it should be.") from None


def text_of(params: Fields, name: str) -> str:
    """Return a parameter that is a text. Raises `RpcFailure`."""
    try:
        return _read_text(params[name])
    except (KeyError, *READ_ERRORS):
        raise RpcFailure(INVALID_PARAMS, f"`{name}` is missing, or no text.") from None


def is_modern(headers: Mapping[str, str], meta: Meta | None) -> bool:
    """Return whether a request claims to stand alone."""
    version = headers.get(VERSION_HEADER)
    if version is None:
        return meta is not None and meta.version is not None
    return version not in LEGACY


def check_modern(headers: Mapping[str, str], envelope: Envelope, meta: Meta | None) -> None:
    """Hold a request that stands alone to what it says of itself, and its headers to its body. Raises `RpcFailure`."""
    if meta is None:
        raise RpcFailure(INVALID_PARAMS, "`params._meta` is missing.")
    for name, value in ((PROTOCOL_VERSION, meta.version), (CLIENT_CAPABILITIES, meta.capabilities)):
        if value is None:
            raise RpcFailure(INVALID_PARAMS, f"`params._meta` has no `{name}`.")
    if headers.get(VERSION_HEADER, "").strip() != meta.version:
        raise RpcFailure(HEADER_MISMATCH, f"The header {VERSION_HEADER} is not the revision that `_meta` names.")
    if headers.get(METHOD_HEADER, "").strip() != envelope.method:
        raise RpcFailure(HEADER_MISMATCH, f"The header {METHOD_HEADER} is not the method of the request.")
    named = NAMED.get(envelope.method)
    if named is not None and named in envelope.params:
        written = _unwrapped(headers.get(NAME_HEADER, "").strip())
        if written != text_of(envelope.params, named):
            raise RpcFailure(HEADER_MISMATCH, f"The header {NAME_HEADER} is not the `{named}` of the request.")
    if meta.version not in MODERN:
        raise unsupported(meta.version)
    if not isinstance(meta.capabilities, dict):
        raise RpcFailure(INVALID_PARAMS, f"`{CLIENT_CAPABILITIES}` is an object.")


def check_legacy(headers: Mapping[str, str]) -> None:
    version = headers.get(VERSION_HEADER)
    if version is not None and version not in LEGACY:
        raise unsupported(version)


def unsupported(version: object) -> RpcFailure:
    requested = str(version)[:MAX_SHOWN]
    return RpcFailure(
        UNSUPPORTED_VERSION, "Unsupported protocol version", {"supported": [*MODERN], "requested": requested}
    )


def one_of_each(headers: list[tuple[bytes, bytes]]) -> None:
    """Refuse a header that is there twice, of which two readers would take different ones. Raises `RpcFailure`."""
    names = [name for name, _ in headers]
    for name in _ROUTING:
        if names.count(name) > 1:
            raise RpcFailure(HEADER_MISMATCH, f"The header {name.decode()} is there more than once.")


def answer(id: Id | None, result: bytes) -> bytes:
    """Return the message that answers a request. `result`: encoded."""
    return b'{"jsonrpc":"2.0","id":' + encode(id) + b',"result":' + result + b"}"


def failure(id: Id | None, error: RpcFailure) -> bytes:
    """Return the message that refuses a request."""
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        fields["data"] = error.data
    return encode({"jsonrpc": "2.0", "id": id, "error": fields})


def refusal(id: Id | None, error: ChatError) -> bytes:
    """Return the message of an error of ours."""
    return encode({"jsonrpc": "2.0", "id": id, "error": error_fields(error)})


def notification(method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def as_event(message: bytes) -> bytes:
    """Return a message in an event stream."""
    return b"event: message\ndata: " + message + b"\n\n"


def _fields_of(raw: msgspec.Raw, max_depth: int) -> Fields:
    try:
        return split(Opened(bytes(raw)), max_depth)  # a part of what was opened
    except ChatError as error:
        raise RpcFailure(INVALID_PARAMS, error.message) from None


def _unwrapped(value: str) -> str | None:
    """Return the text of a header, which may be in base64; None where that is damaged."""
    wrapped = _WRAPPED.fullmatch(value)
    if wrapped is None:
        return value
    payload = wrapped["payload"]
    try:
        data = base64.b64decode(payload, validate=True)
        if base64.b64encode(data).decode() != payload:
            return None
        return data.decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
