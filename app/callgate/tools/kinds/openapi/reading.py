"""Reads an OpenAPI document into the operations that become tools: no network, no credentials, plain values.

A long document, and any from a network, is read in a child process (`callgate.parsers`), because parsing it and compiling its
schemas takes what its author wants it to take.
"""

import contextlib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from callgate.calls.legal_names import MAX_LENGTH
from callgate.parsers.jobs import MAX_ANSWER, ParserFailed, Reason
from callgate.tools.kinds.openapi.document import BadDocument, Credential, LeftOut, OpenApiDocument, Operation
from callgate.tools.kinds.openapi.operation import BodyShape, Parameter, shape_of
from callgate.tools.kinds.openapi.reading_process import TO_READ, DocumentQuestion
from callgate.tools.kinds.openapi.schema import Dictionary
from callgate.tools.registry import whole_schema
from callgate.tools.schema import SchemaError, compile_schema
from callgate.tools.tool_filter import nearest
from callgate.untrusted.messagepack import MOST_DEPTH, PackDoor, UntrustedPack, open_pack, pack_written_here
from callgate.untrusted.readers import READ_ERRORS, msgpack_reader

MAX_TOOLS: Final = 2000
"""Tools of one document; models are sent all that they are offered with every question."""
MAX_SCHEMAS_BYTES: Final = 16 * 1024 * 1024
"""The schemas of all tools of a document together: one part of it may be written into each of them."""
READ_HERE: Final = 64 * 1024
"""A file of so many characters is read here: its author is the operator, and its values are counted before it is built."""

_RENAME_PLACE = re.compile(r"\{(?:name|method|tag)\}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """A filter of the operations that become tools: globs over their names, `METHOD /path` and tags."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def takes(self, operation: Operation) -> bool:
        return _matches(self.include, operation.selectors()) and not _matches(self.exclude, operation.selectors())


EVERYTHING: Final = OperationFilter()


class ReadingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator's settings say about reading a document. No secret is among it."""

    address: str | None
    """The document's URL, if it has one."""
    has_base_url: bool
    """Whether the settings say where the API is."""
    schemes: tuple[str, ...]
    """The security schemes for which there are credentials."""
    headers: tuple[str, ...]
    """The names of the headers that are sent with every call."""
    selection: OperationFilter
    prefix: str
    rename: dict[str, str]


class ReadOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that becomes a tool."""

    name: str
    method: str
    title: str
    claimed: str
    """The name that its tool claims."""
    description: str
    schema: dict[str, Any]
    path: str
    parameters: tuple[Parameter, ...]
    body: BodyShape | None
    server: str
    """The URL of its server by the document; empty where the settings say it."""
    credentials: tuple[Credential, ...]


class Reading(msgspec.Struct, frozen=True):
    """What a document says."""

    operations: list[ReadOperation]
    left_out: list[tuple[str, str]]
    """The selected operations that are no tools, each with the reason."""


class _EncodedReading(msgspec.Struct, frozen=True):
    operations: list[bytes]
    left_out: list[tuple[str, str]]


def read_document(text: str, terms: ReadingTerms) -> Reading:
    """Read a document. Raises `BadDocument`."""
    return operations_of(OpenApiDocument.read(text, terms.address), terms)


def operations_of(document: OpenApiDocument, terms: ReadingTerms) -> Reading:
    """Return the selected operations of a document."""
    try:
        operations = list(document.operations())
    except LeftOut as error:
        raise BadDocument(str(error)) from None
    _check(document, operations, terms)
    dictionary = Dictionary(document)
    reading = Reading([], [])
    written = 0
    for operation in operations:
        if terms.selection.takes(operation):
            try:
                read = _read(dictionary, operation, terms)
            except LeftOut as error:
                reading.left_out.append((operation.name, f"{operation.title}: {error}"))
                continue
            reading.operations.append(read)
            written += _encoded_bytes(read.schema)
            if len(reading.operations) > MAX_TOOLS or written > MAX_SCHEMAS_BYTES:
                raise BadDocument(
                    f"more than {MAX_TOOLS} operations, or schemas of more than {MAX_SCHEMAS_BYTES} bytes, would "
                    "become tools: choose some with `include` or `exclude`"
                )
    return reading


def _check(document: OpenApiDocument, operations: Iterable[Operation], terms: ReadingTerms) -> None:
    """Raise for names in the settings that are not in the document."""
    selectors = [selector for operation in operations for selector in operation.selectors()]
    for pattern in (*terms.selection.include, *terms.selection.exclude):
        if pattern != "*" and not fnmatch.filter(selectors, pattern):
            hint = nearest(pattern, list(dict.fromkeys(selectors)))
            raise BadDocument(
                f"no operation, path or tag of it is called {pattern!r}" + (f"; is it {hint!r}?" if hint else "")
            )
    names = [operation.name for operation in operations]
    for pattern in terms.rename:
        if not fnmatch.filter(names, pattern):
            near = nearest(pattern, names)
            raise BadDocument(
                f"`rename` names no operation of it: {pattern!r}" + (f"; is it {near!r}?" if near else "")
            )
    for name in terms.schemes:
        if name not in document.schemes():
            schemes = ", ".join(document.schemes()) or "none"
            raise BadDocument(f"`auth` names {name!r}, and its security schemes are: {schemes}")


def _read(dictionary: Dictionary, operation: Operation, terms: ReadingTerms) -> ReadOperation:
    document = dictionary.document
    credentials = document.credentials(operation, terms.schemes)
    headers = {*terms.headers, *(credential.name for credential in credentials if credential.place == "header")}
    fixed = {f"header {name.lower()}" for name in headers}
    fixed |= {f"query {credential.name}" for credential in credentials if credential.place == "query"}
    shape = shape_of(dictionary, operation, frozenset(fixed))
    return ReadOperation(
        name=operation.name,
        method=operation.method,
        title=operation.title,
        claimed=_claimed_name(operation, terms),
        description=shape.description,
        schema=dict(shape.schema),
        path=shape.path,
        parameters=shape.parameters,
        body=shape.body,
        server="" if terms.has_base_url else document.server(operation),
        credentials=credentials,
    )


def _claimed_name(operation: Operation, terms: ReadingTerms) -> str:
    """Return the name of an operation's tool: by the first matching entry of `rename`, else its own, with the prefix."""
    rename = terms.rename
    name = operation.name
    pattern: str | None = name
    if name not in rename:
        pattern = next((glob for glob in rename if fnmatch.fnmatchcase(name, glob)), None)
    if pattern is not None:
        tag = next(iter(operation.selectors()[2:]), "")
        places = {"{name}": name, "{method}": operation.method.lower(), "{tag}": tag}
        name = _RENAME_PLACE.sub(lambda match: places[match[0]], rename[pattern])
    if terms.prefix and not name.startswith(f"{terms.prefix}_"):
        name = f"{terms.prefix}_{name}"
    return _ILLEGAL.sub("_", name).strip("_")[:MAX_LENGTH]


def _encoded_bytes(schema: Mapping[str, object]) -> int:
    try:
        return len(msgspec.json.encode(schema))
    except (UnicodeEncodeError, TypeError, OverflowError):  # the registry leaves such a tool out, and says why
        return 0


def _matches(patterns: Iterable[str], selectors: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(selector, pattern) for pattern in patterns for selector in selectors)


# In a child process -------------------------------------------------------------------------------

_read_terms = msgpack_reader(ReadingTerms)
_read_reading = msgpack_reader(_EncodedReading)
_read_operation = msgpack_reader(ReadOperation)
OPERATION: Final = PackDoor(name="operation that a child read", bytes=MAX_ANSWER, depth=MOST_DEPTH)


def question_for_child(text: str, terms: ReadingTerms) -> UntrustedPack:
    question = DocumentQuestion(text, terms.address, msgspec.msgpack.encode(terms))
    return UntrustedPack(msgspec.msgpack.encode(question), TO_READ)


def encoded_reading(document: OpenApiDocument, terms: bytes) -> bytes:
    """Read a document, in the child. Each schema is compiled too, which shows that the parent can."""
    reading = operations_of(document, _read_terms(pack_written_here(terms)))
    operations: list[bytes] = []
    left_out = list(reading.left_out)
    for operation in reading.operations:
        try:
            encoded = msgspec.msgpack.encode(operation)
        except (UnicodeEncodeError, OverflowError) as error:
            left_out.append((operation.name, f"{operation.title}: it cannot be written as JSON: {error}"))
            continue
        with contextlib.suppress(SchemaError):  # said by the registry, which does not offer it
            compile_schema(whole_schema(operation.schema))
        operations.append(encoded)
    return msgspec.msgpack.encode(_EncodedReading(operations, left_out))


def reading_of_child(result: UntrustedPack) -> Iterable["ReadOperation | tuple[str, str]"]:
    """Yield what a child has read, one by one: operations, then what was left out. Raises `ParserFailed` for what is none."""
    try:
        encoded = _read_reading(result.open())
        if len(encoded.operations) > MAX_TOOLS:
            raise ParserFailed(Reason.GARBAGE, "too many operations")
        for operation in encoded.operations:
            yield _read_operation(open_pack(operation, OPERATION))
        yield from encoded.left_out
    except READ_ERRORS as error:
        raise ParserFailed(Reason.GARBAGE, type(error).__name__) from None
