"""Tools from an OpenAPI document: one for each operation, run as an `HttpEndpoint`.

The document is a file, which is read at the start, or a URL, which is fetched when the source opens. An operation with
unsupported features is left out, with the reason.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from msgspec.structs import replace

from callgate.calls.outcome import Failed
from callgate.config.files import near_file, read_text
from callgate.parsers.jobs import ParserFailed, Refused
from callgate.parsers.pool import ParserPool
from callgate.tools.executor import DEFAULT_POLICY, Policy, Safety, Tool
from callgate.tools.fixed_names import FixedNames
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import Request, Web, ask, shown_address
from callgate.tools.kinds.http.endpoint import BadTemplate, HttpEndpoint, PathValues, encoded
from callgate.tools.kinds.openapi.document import MAX_DOCUMENT_BYTES, BadDocument, Credential
from callgate.tools.kinds.openapi.operation import Shape
from callgate.tools.kinds.openapi.reading import (
    EVERYTHING,
    READ_HERE,
    OperationFilter,
    ReadingTerms,
    ReadOperation,
    question_for_child,
    read_document,
    reading_of_child,
)
from callgate.tools.kinds.openapi.reading_process import READ_DOCUMENT
from callgate.tools.source_schemas import compile_at_once

ACCEPTED = "application/json, text/plain;q=0.9, */*;q=0.5"
"""Without an Accept header many servers send a web page."""

_SAFETY = {"GET": Safety.READ_ONLY, "HEAD": Safety.READ_ONLY, "DELETE": Safety.DESTRUCTIVE}


class Unavailable(Exception):
    """Raised where the document could not be fetched."""


@dataclass(frozen=True, slots=True)
class Api:
    """The operator's settings of an API, except for the place of its document."""

    base_url: str | None = None
    auth: Mapping[str, str] = field(default_factory=dict)
    """Credentials by the names of the document's security schemes."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every call."""
    selection: OperationFilter = EVERYTHING
    rules: AddressRules = PUBLIC_ONLY
    policy: Policy = DEFAULT_POLICY
    safety: Safety | None = None
    """The class of all its tools; by default it depends on their methods."""
    path_values: PathValues = PathValues.ONE_SEGMENT
    prefix: str = ""
    """The prefix for the names of its tools, without the `_`; empty for none."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """New names of tools, with placeholders `{name}`, `{method}`, `{tag}`, by operation names or globs."""


class OpenApiSource:
    """The source of one document's tools."""

    kind = "openapi"

    def __init__(
        self, name: str, api: Api, place: str, web: Callable[[], Web] = Web, parsers: ParserPool | None = None
    ) -> None:
        """`place`: the document's file or URL. An invalid file raises `BadDocument` at once. `parsers` reads what is long, or from
        a URL.

        `web` makes the connections, which belong to the source, because another runtime may take it over.
        """
        self.name = name
        self._make_web = web
        self._web = web()
        self._api = api
        self._parsers = parsers or ParserPool()
        self._address = place if place.startswith(("http://", "https://")) else None
        self._tools: tuple[Tool, ...] = ()
        self._left_out: tuple[tuple[str, str], ...] = ()
        if self._address is None:
            file = Path(place)
            try:
                self._take(self._read_file(read_text(file, MAX_DOCUMENT_BYTES)))
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    hint = near_file(file)
                else:
                    hint = ""
                raise BadDocument(f"{file}: cannot be read: {error.strerror}{hint}") from None
            except UnicodeDecodeError:
                raise BadDocument(f"{file}: is not UTF-8 text") from None
            except BadDocument as error:
                raise BadDocument(f"{file}: {error}") from None

    @property
    def prefix(self) -> str:
        return self._api.prefix

    async def open(self) -> None:
        if self._address is None:
            return
        self._web = self._make_web()
        try:
            request = Request(
                "GET", httpx2.URL(self._address), {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5"}
            )
            answer = await ask(self._web, self._api.rules, request, MAX_DOCUMENT_BYTES)
            if isinstance(answer, Failed):
                raise Unavailable(answer.text)
            if answer.cut_bytes:
                raise BadDocument(f"it is larger than {MAX_DOCUMENT_BYTES} bytes")
            await self._read_in_child(answer.text)
        except BaseException:
            await self._web.close()
            raise

    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Return the selected operations that are no tools, each with the reason."""
        return self._left_out

    async def close(self) -> None:
        await self._web.close()

    def _take(self, read: Iterable[ReadOperation | tuple[str, str]]) -> None:
        """Make the tools of what was read."""
        tools: list[Tool] = []
        left_out: list[tuple[str, str]] = []
        for operation in read:
            if isinstance(operation, tuple):
                left_out.append(operation)
                continue
            try:
                tools.append(self._tool(operation))
            except BadTemplate as error:
                left_out.append((operation.name, f"{operation.title}: {error}"))
        if not tools:
            raise BadDocument(
                f"no operation of it can be a tool; {left_out[0][1]}" if left_out else "it has no operation"
            )
        self._tools = compile_at_once(tools)
        self._left_out = tuple(left_out)

    def terms(self) -> ReadingTerms:
        """Return what the settings say about reading the document."""
        api = self._api
        return ReadingTerms(
            address=self._address,
            has_base_url=bool(api.base_url),
            schemes=tuple(api.auth),
            headers=("Accept", *api.headers),
            selection=api.selection,
            prefix=api.prefix,
            rename=dict(api.rename),
        )

    def _read_file(self, text: str) -> Iterable[ReadOperation | tuple[str, str]]:
        if len(text) <= READ_HERE:
            reading = read_document(text, self.terms())
            return (*reading.operations, *reading.left_out)
        try:
            return reading_of_child(
                self._parsers.run_at_once(READ_DOCUMENT, question_for_child(text, self.terms()), self.name)
            )
        except Refused as error:
            raise BadDocument(str(error)) from None
        except ParserFailed as failure:
            raise BadDocument(str(failure)) from None

    async def _read_in_child(self, text: str) -> None:
        try:
            question = await asyncio.to_thread(question_for_child, text, self.terms())
            result = await self._parsers.run(READ_DOCUMENT, question, self.name)
            await asyncio.to_thread(lambda: self._take(reading_of_child(result)))
        except Refused as error:
            raise BadDocument(str(error)) from None
        except ParserFailed as failure:
            raise Unavailable(str(failure)) from None

    def _tool(self, read: ReadOperation) -> Tool:
        api = self._api
        headers = {"Accept": ACCEPTED, **api.headers, **_filled(read.credentials, api.auth, "header")}
        query = _filled(read.credentials, api.auth, "query")
        shape = Shape(
            read.description,
            read.schema,
            read.path,
            read.parameters,
            read.body,
            query=encoded(query.items()),
            fixed=FixedNames(query),
        )
        address = f"{(api.base_url or read.server).rstrip('/')}{read.path}"
        executor = HttpEndpoint(
            self._web,
            method=read.method,
            url=address,
            headers=headers,
            rules=api.rules,
            path_values=api.path_values,
            spread=shape.spread,
        )
        return Tool(
            name=read.name,
            description=read.description,
            parameters=read.schema,
            executor=executor,
            policy=replace(
                api.policy, safety=api.safety or _SAFETY.get(read.method, Safety.WRITE), safety_is_given=True
            ),
            kind=self.kind,
            source=f"{read.method} {shown_address(address)}",
            claimed=read.claimed,
        )


def _filled(credentials: Iterable[Credential], auth: Mapping[str, str], place: str) -> dict[str, str]:
    return {
        credential.name: credential.filled(auth[credential.scheme])
        for credential in credentials
        if credential.place == place
    }
