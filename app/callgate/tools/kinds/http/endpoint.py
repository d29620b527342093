"""One HTTP request as a tool: a method, a URL with placeholders, and rules for the other arguments.

The model's arguments fill the placeholders and nothing else: not the host, not another path segment unless that is allowed,
not a header. The finished URL is compared with the template before it is sent.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, unquote_plus, urlencode, urlsplit

import httpx2
import msgspec

from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.http.trace_context import trace_headers
from callgate.tools.executor import CallContext
from callgate.tools.fixed_names import FixedNames
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import Request, Web, ask, shown_address
from callgate.tools.parameters import named_in, unknown_place

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_HEADER_PLACE = re.compile(rf"(?<!\$){_PLACE.pattern}")
"""The same in a header; not a variable that is not set, which is reported by itself."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
_MISSING = object()
_DECODED_AT_MOST = 4


class PathValues(StrEnum):
    """The values that are allowed in a placeholder of a URL's path."""

    ONE_SEGMENT = "one_segment"
    ENCODED = "encoded"
    """Slashes too, sent as `%2F`, so that they stay in their segment for servers that follow the standard."""
    SEGMENTS = "segments"
    """Several segments, with slashes between them."""


class BadTemplate(ValueError):
    """Raised for an invalid URL template or header in the config. For the operator."""


class BadArgument(ValueError):
    """Raised for an argument that cannot fill its placeholder. For the model."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The arguments of a call, by part of the request."""

    path: Mapping[str, Any]
    """Values for the placeholders of the URL."""
    query: str = ""
    """Further query parameters, encoded."""
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None


Spread: TypeAlias = Callable[[Mapping[str, Any]], Parts]
"""Assigns the arguments to the parts of the request. Raises `BadArgument`."""


class HttpEndpoint:
    """Runs a call as one HTTP request.

    `spread` assigns the arguments to the parts of the request. Without it those named in the path, in `query` or in `body` go
    there, and the others become the JSON body if the method has one and there is no `body`, else query parameters. Then
    `parameters` is the schema of the arguments, which has every placeholder, and no name that URL, query or headers fix.
    """

    def __init__(
        self,
        web: Web,
        *,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str | int | float | bool] | None = None,
        body: Any = None,
        parameters: Mapping[str, Any] | None = None,
        rules: AddressRules = PUBLIC_ONLY,
        path_values: PathValues = PathValues.ONE_SEGMENT,
        spread: Spread | None = None,
    ) -> None:
        self._web = web
        self._method = method.upper()
        self._url = _UrlTemplate.read(url, path_values)
        self._headers = _sendable(headers or {})
        self._query = dict(query or {})
        self._body = body
        self._rules = rules
        self._spread = spread or self._by_templates
        self._placed = {*self._url.places, *_places(self._query), *_places(body)}
        self._fixed = FixedNames([*self._url.names, *self._query, *self._headers, *_names_in(body)])
        self._named = frozenset[str]()
        if parameters is not None:
            self._named = self._checked(parameters, headers or {})

    async def execute(self, call: ReadyCall, context: CallContext) -> Outcome:
        try:
            request = self._request(call.arguments, context.key)
        except BadArgument as error:
            return Failed(f"Not run: {error}", FailureKind.NOT_RUN)
        return await ask(self._web, self._rules, request, context.max_bytes)

    def _request(self, arguments: Mapping[str, Any], key: str) -> Request:
        parts = self._spread(arguments)
        headers = _merged(trace_headers(), parts.headers, self._headers, {"Idempotency-Key": key})
        if parts.content is not None:
            headers = _merged({"Content-Type": "application/json"}, headers)
        return Request(self._method, self._url.fill(parts.path, parts.query), headers, parts.content)

    def _checked(self, parameters: Mapping[str, Any], headers: Mapping[str, str]) -> frozenset[str]:
        """Return the names of the parameters. Raises `BadTemplate` where a call could never be made as it is meant."""
        names = named_in(parameters)
        if wrong := unknown_place(self._placed, names):
            raise BadTemplate(wrong)
        for header, value in headers.items():
            if _HEADER_PLACE.search(value):  # not quoted: it may be a part of a secret
                raise BadTemplate(f"the value of {header} holds `{{…}}`: arguments are not filled into headers")
        for name in sorted(names - self._placed):
            if (fixed := self._fixed.meant_by(name)) is not None:
                raise BadTemplate(
                    f"`{name}` of `parameters` can never be set: {fixed} is fixed in the URL, `query`, `headers` or `body`"
                )
        return names

    def _by_templates(self, arguments: Mapping[str, Any]) -> Parts:
        unplaced = {name: value for name, value in arguments.items() if name not in self._placed}
        self._refuse_fixed(name for name in unplaced if name not in self._named)
        has_body = self._method in _BODY_METHODS
        query = list(_query(self._query, arguments))
        if not has_body:
            query += pairs(unplaced)
        content: bytes | None = None
        if self._body is not None:
            body = _filled(self._body, arguments)
            if isinstance(self._body, str) and isinstance(body, Mapping):  # an argument is the whole body
                self._refuse_fixed(body)
            content = as_json(body)
        elif has_body:
            content = as_json(unplaced)
        return Parts(arguments, encoded(query), content=content)

    def _refuse_fixed(self, names: Iterable[str]) -> None:
        for name in names:
            if (fixed := self._fixed.meant_by(name)) is not None:
                raise BadArgument(f"`{name}` cannot be chosen: the tool fixes {fixed}")


@dataclass(frozen=True, slots=True)
class _UrlTemplate:
    origin: httpx2.URL
    authority: str
    """Scheme, user and host, as written; never filled in."""
    path: str
    query: str
    prefix: str
    """The literal beginning of the path."""
    places: frozenset[str]
    names: tuple[str, ...]
    """The names of the parameters in its query."""
    path_values: PathValues

    @classmethod
    def read(cls, template: str, path_values: PathValues) -> "_UrlTemplate":
        shown = shown_address(template)
        try:
            parts = urlsplit(template)
        except ValueError as error:  # for brackets around what is no IPv6 address
            raise BadTemplate(f"{shown} is no address that can be used") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadTemplate(f"{shown} is not an http or https address")
        if "{" in parts.netloc:
            raise BadTemplate(f"{shown}: a model may not choose the host; `{{…}}` belongs in the path or the query")
        path = parts.path or "/"
        if any(unquote(segment) in (".", "..") for segment in path.split("/")):
            raise BadTemplate(f"{shown} has `.` or `..` in its path; write the path as it is meant")
        authority = f"{parts.scheme}://{parts.netloc}"
        try:
            origin = httpx2.URL(authority)
            prefix = _path_of(httpx2.URL(authority + _PLACE.split(path, maxsplit=1)[0]))
        except (httpx2.InvalidURL, UnicodeError) as error:  # its text quotes parts of the URL
            raise BadTemplate(f"{shown} is no address that can be used") from error
        places = frozenset(_PLACE.findall(path + "?" + parts.query))
        names = tuple(unquote_plus(part.partition("=")[0]) for part in re.split("[&;]", parts.query) if part)
        return cls(origin, authority, path, parts.query, prefix, places, names, path_values)

    def fill(self, arguments: Mapping[str, Any], added_query: str) -> httpx2.URL:
        path = _PLACE.sub(lambda match: _in_path(match.group(1), arguments, self.path_values), self.path)
        fixed = _PLACE.sub(lambda match: _quoted(match.group(1), _needed(match.group(1), arguments)), self.query)
        try:
            query = "&".join(part for part in (fixed, added_query) if part)
            url = httpx2.URL(f"{self.authority}{path}{'?' + query if query else ''}")
        except httpx2.InvalidURL as error:
            raise BadArgument(f"the arguments make no URL ({error})") from error
        if not self._keeps(url):
            raise BadArgument("the arguments lead away from the tool's address")
        return url

    def _keeps(self, url: httpx2.URL) -> bool:
        """True if a finished URL still has the template's origin and path. A safeguard."""
        same_origin = (url.scheme, url.host, url.port) == (self.origin.scheme, self.origin.host, self.origin.port)
        path = _path_of(url)
        slashes = path.count("/") - self.path.count("/")
        same_shape = slashes == 0 or (slashes > 0 and self.path_values is PathValues.SEGMENTS)
        return same_origin and same_shape and path.startswith(self.prefix) and url.fragment == ""


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Check the headers at load. Errors do not quote the values, which may be secrets."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise BadTemplate(f"{name!r} is not the name of a header")
        if not value.isascii() or _CONTROL.search(value) or value != value.strip():
            raise BadTemplate(
                f"the value of {name} holds characters that cannot stand in a header, or spaces around it"
            )
    return dict(headers)


def _path_of(url: httpx2.URL) -> str:
    return url.raw_path.partition(b"?")[0].decode("ascii")


def _in_path(name: str, arguments: Mapping[str, Any], allowed: PathValues) -> str:
    """Encode a value for a path: not empty, without `..`, and one segment unless more are allowed.

    It is checked also as servers may read it that decode it more than once.
    """
    value = _needed(name, arguments)
    if not value:
        raise BadArgument(f"`{name}` is empty, and it is part of the path")
    for reading in _readings(value):
        if any(part in (".", "..") for part in re.split(r"[/\\]", reading)):
            raise BadArgument(f"`{name}` may not contain `.` or `..` as a path segment")
        if "\\" in reading or ("/" in reading and (allowed is PathValues.ONE_SEGMENT or reading is not value)):
            raise BadArgument(f"`{name}` is one segment of a path, and may not contain `/` or `\\`, encoded or not")
    if allowed is not PathValues.SEGMENTS:
        return _quoted(name, value)
    if "" in value.split("/"):
        raise BadArgument(f"`{name}` may not begin or end with `/`, or have two in a row")
    return "/".join(_quoted(name, part) for part in value.split("/"))


def _readings(value: str) -> Iterator[str]:
    """Yield a value, and the results of decoding it repeatedly."""
    yield value
    for _ in range(_DECODED_AT_MOST):
        decoded = unquote(value)
        if decoded == value:
            return
        value = decoded
        yield value
    raise BadArgument("a part of the path is encoded over and over")


def _needed(name: str, arguments: Mapping[str, Any]) -> str:
    value = arguments.get(name)
    if value is None:
        raise BadArgument(f"`{name}` is missing, and the address needs it")
    if isinstance(value, (dict, list)):
        raise BadArgument(f"`{name}` must be a single value, because it is part of the address")
    return as_text(value)


def _quoted(name: str, value: str) -> str:
    if _CONTROL.search(value):
        raise BadArgument(f"`{name}` contains control characters")
    try:
        return quote(value, safe="")
    except UnicodeEncodeError as error:
        raise BadArgument(f"`{name}` is not valid text") from error


def _query(templates: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, template in templates.items():
        value = _filled(template, arguments)
        if value is not _MISSING:
            yield from pairs({key: value})


def pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return query parameters; for a list the name is repeated, null is left out."""
    parameters: list[tuple[str, str]] = []
    for key, value in values.items():
        items = value if isinstance(value, list) else [value]
        parameters += [(key, as_text(item)) for item in items if item is not None]
    return parameters


def encoded(query: Iterable[tuple[str, str]]) -> str:
    try:
        return urlencode(list(query), quote_via=quote, safe="")
    except UnicodeEncodeError as error:
        raise BadArgument("the arguments are not valid text") from error


def _filled(template: Any, arguments: Mapping[str, Any]) -> Any:
    """Fill the placeholders of a template. Parts with missing arguments are left out."""
    match template:
        case str():
            names = _PLACE.findall(template)
            if any(name not in arguments for name in names):
                return _MISSING
            if len(names) == 1 and template == f"{{{names[0]}}}":
                return arguments[names[0]]
            return _PLACE.sub(lambda match: as_text(arguments[match.group(1)]), template)
        case Mapping():
            filled = {key: _filled(value, arguments) for key, value in template.items()}
            return {key: value for key, value in filled.items() if value is not _MISSING}
        case list() | tuple():
            return [value for value in (_filled(item, arguments) for item in template) if value is not _MISSING]
        case _:
            return template


def _names_in(body: Any) -> Iterable[str]:
    """Return the names of the fields that a template of a body has."""
    if isinstance(body, Mapping):
        return body
    return ()


def _merged(*parts: Mapping[str, str]) -> dict[str, str]:
    """Merge headers, whose names have no case; later ones replace earlier ones."""
    merged: dict[str, tuple[str, str]] = {}
    for headers in parts:
        merged |= {name.lower(): (name, value) for name, value in headers.items()}
    return dict(merged.values())


def _places(template: Any) -> set[str]:
    match template:
        case str():
            return set(_PLACE.findall(template))
        case Mapping():
            return {name for value in template.values() for name in _places(value)}
        case list() | tuple():
            return {name for value in template for name in _places(value)}
        case _:
            return set()


def as_text(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            if value:
                return "true"
            return "false"
        case None:
            return ""
        case dict() | list():
            return as_json(value).decode()
        case _:
            return str(value)


def as_json(value: Any) -> bytes:
    try:
        if value is _MISSING:
            return b"null"
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise BadArgument(f"the arguments cannot be written as JSON ({error})") from error
