"""Tools from an OpenAPI document: one for each operation, run as an `HttpEndpoint`.

The document is a file, which is read at the start, or a URL, which is fetched when the source opens. An operation with
unsupported features is left out, with the reason.
"""

import asyncio
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import msgspec

from callgate.calls.legal_names import MAX_LENGTH
from callgate.calls.outcome import Failed
from callgate.config.files import near_file, read_text
from callgate.tools.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.executor import DEFAULT_POLICY, Policy, Safety, Tool
from callgate.tools.fixed_names import FixedNames
from callgate.tools.http_client import Request, Web, ask, shown_address
from callgate.tools.http_endpoint import BadTemplate, HttpEndpoint, PathValues, encoded
from callgate.tools.openapi_document import MAX_DOCUMENT_BYTES, BadDocument, LeftOut, OpenApiDocument, Operation
from callgate.tools.openapi_operation import shape_of
from callgate.tools.openapi_schema import Dictionary
from callgate.tools.tool_filter import nearest

MAX_TOOLS = 2000
"""Tools of one document; models are sent all that they are offered with every question."""
MAX_SCHEMAS_BYTES = 16 * 1024 * 1024
"""The schemas of all tools of a document together: one part of it may be written into each of them."""
ACCEPTED = "application/json, text/plain;q=0.9, */*;q=0.5"
"""Without an Accept header many servers send a web page."""

_RENAME_PLACE = re.compile(r"\{(?:name|method|tag)\}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")
_SAFETY = {"GET": Safety.READ_ONLY, "HEAD": Safety.READ_ONLY, "DELETE": Safety.DESTRUCTIVE}


class Unavailable(Exception):
    """Raised where the document could not be fetched."""


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """A filter of the operations that become tools: globs over their names, `METHOD /path` and tags."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def takes(self, operation: Operation) -> bool:
        return _matches(self.include, operation.selectors) and not _matches(self.exclude, operation.selectors)


@dataclass(frozen=True, slots=True)
class Api:
    """The operator's settings of an API, except for the place of its document."""

    base_url: str | None = None
    auth: Mapping[str, str] = field(default_factory=dict)
    """Credentials by the names of the document's security schemes."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every call."""
    selection: OperationFilter = OperationFilter()
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

    def __init__(self, name: str, api: Api, place: str, web: Callable[[], Web] = Web) -> None:
        """`place`: the document's file or URL. An invalid file raises `BadDocument` at once.

        `web` makes the connections, which belong to the source, because another runtime may take it over.
        """
        self.name = name
        self._make_web = web
        self._web = web()
        self._api = api
        self._address = place if place.startswith(("http://", "https://")) else None
        self._tools: tuple[Tool, ...] = ()
        self._left_out: tuple[tuple[str, str], ...] = ()
        if self._address is None:
            file = Path(place)
            try:
                built = self._built(read_text(file, MAX_DOCUMENT_BYTES))
            except OSError as error:
                hint = near_file(file) if isinstance(error, FileNotFoundError) else ""
                raise BadDocument(f"{file}: cannot be read: {error.strerror}{hint}") from None
            except UnicodeDecodeError:
                raise BadDocument(f"{file}: is not UTF-8 text") from None
            except BadDocument as error:
                raise BadDocument(f"{file}: {error}") from None
            self._take(built)

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
            text = answer.text
            self._take(await asyncio.to_thread(self._built, text))
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

    def _take(self, built: tuple[list[Tool], list[tuple[str, str]]]) -> None:
        self._tools, self._left_out = tuple(built[0]), tuple(built[1])

    def _built(self, text: str) -> tuple[list[Tool], list[tuple[str, str]]]:
        return self._built_from(OpenApiDocument.read(text, self._address))

    def _built_from(self, document: OpenApiDocument) -> tuple[list[Tool], list[tuple[str, str]]]:
        try:
            operations = list(document.operations())
        except LeftOut as error:
            raise BadDocument(str(error)) from None
        self._check(document, operations)
        dictionary = Dictionary(document)
        tools: list[Tool] = []
        left_out: list[tuple[str, str]] = []
        written = 0
        for operation in operations:
            if self._api.selection.takes(operation):
                try:
                    tools.append(self._tool(dictionary, operation))
                    written += _encoded_bytes(tools[-1].parameters)
                    if len(tools) > MAX_TOOLS or written > MAX_SCHEMAS_BYTES:
                        raise BadDocument(
                            f"more than {MAX_TOOLS} operations, or schemas of more than {MAX_SCHEMAS_BYTES} bytes, would "
                            "become tools: choose some with `include` or `exclude`"
                        )
                except (LeftOut, BadTemplate) as error:
                    left_out.append((operation.name, f"{operation.title}: {error}"))
        if not tools:
            raise BadDocument(
                f"no operation of it can be a tool; {left_out[0][1]}" if left_out else "it has no operation"
            )
        return tools, left_out

    def _check(self, document: OpenApiDocument, operations: Iterable[Operation]) -> None:
        """Raise for names in the settings that are not in the document."""
        selectors = [selector for operation in operations for selector in operation.selectors]
        for pattern in (*self._api.selection.include, *self._api.selection.exclude):
            if pattern != "*" and not fnmatch.filter(selectors, pattern):
                hint = nearest(pattern, list(dict.fromkeys(selectors)))
                raise BadDocument(
                    f"no operation, path or tag of it is called {pattern!r}" + (f"; is it {hint!r}?" if hint else "")
                )
        names = [operation.name for operation in operations]
        for pattern in self._api.rename:
            if not fnmatch.filter(names, pattern):
                near = nearest(pattern, names)
                raise BadDocument(
                    f"`rename` names no operation of it: {pattern!r}" + (f"; is it {near!r}?" if near else "")
                )
        for name in self._api.auth:
            if name not in document.schemes():
                known = ", ".join(document.schemes()) or "none"
                raise BadDocument(f"`auth` names {name!r}, and its security schemes are: {known}")

    def _wanted(self, operation: Operation) -> str:
        """Return the name of an operation's tool: by the first matching entry of `rename`, else its own, with the prefix."""
        rename = self._api.rename
        pattern = (
            operation.name
            if operation.name in rename
            else next((each for each in rename if fnmatch.fnmatchcase(operation.name, each)), None)
        )
        name = operation.name
        if pattern is not None:
            tag = next(iter(operation.selectors[2:]), "")
            places = {"{name}": name, "{method}": operation.method.lower(), "{tag}": tag}
            name = _RENAME_PLACE.sub(lambda found: places[found[0]], rename[pattern])
        if self._api.prefix and not name.startswith(f"{self._api.prefix}_"):
            name = f"{self._api.prefix}_{name}"
        return _ILLEGAL.sub("_", name).strip("_")[:MAX_LENGTH]

    def _tool(self, dictionary: Dictionary, operation: Operation) -> Tool:
        api, document = self._api, dictionary.document
        credentials = document.credentials(operation, api.auth)
        headers = {"Accept": ACCEPTED, **api.headers, **credentials.headers}
        fixed = {f"header {name.lower()}" for name in headers} | {f"query {name}" for name in credentials.query}
        shape = shape_of(dictionary, operation, frozenset(fixed))
        shape = replace(shape, query=encoded(credentials.query.items()), fixed=FixedNames(credentials.query))
        base = (api.base_url or document.server(operation)).rstrip("/")
        address = f"{base}{shape.path}"
        executor = HttpEndpoint(
            self._web,
            method=operation.method,
            url=address,
            headers=headers,
            rules=api.rules,
            path_values=api.path_values,
            spread=shape.spread,
        )
        return Tool(
            name=operation.name,
            description=shape.description,
            parameters=shape.schema,
            executor=executor,
            policy=replace(
                api.policy, safety=api.safety or _SAFETY.get(operation.method, Safety.WRITE), safety_is_given=True
            ),
            kind=self.kind,
            source=f"{operation.method} {shown_address(address)}",
            wanted=self._wanted(operation),
        )


def _encoded_bytes(schema: Mapping[str, object]) -> int:
    try:
        return len(msgspec.json.encode(schema))
    except (UnicodeEncodeError, TypeError):  # the registry leaves such a tool out, and says why
        return 0


def _matches(patterns: Iterable[str], selectors: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(selector, pattern) for pattern in patterns for selector in selectors)
