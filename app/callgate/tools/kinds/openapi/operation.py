"""Translates an operation of an OpenAPI document to the arguments of a tool, and arguments to a request.

An argument has the name of its parameter, if that is legal and unique. The properties of a JSON body are arguments beside the
parameters if the body is required and has only properties; otherwise the body is one argument.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from callgate.tools.fixed_names import NO_NAMES, FixedNames
from callgate.tools.kinds.http.endpoint import BadArgument, Parts, as_json, as_text
from callgate.tools.kinds.openapi.document import LeftOut, Operation
from callgate.tools.kinds.openapi.schema import Dictionary, Schemas

MAX_DESCRIPTION = 2_000
"""Characters of a description, because some are very long and all are sent with every request."""
MAX_NAME = 64
BODY = "body"

JSON = re.compile(r"application/(?:[A-Za-z0-9.+-]+\+)?json\s*(?:;|\Z)", re.IGNORECASE)
FORM = re.compile(r"application/x-www-form-urlencoded\s*(?:;|\Z)", re.IGNORECASE)
TEXT = re.compile(r"text/plain\s*(?:;|\Z)", re.IGNORECASE)

_PLACE = re.compile(r"\{([^{}]+)\}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({
    "accept", "accept-encoding", "authorization", "content-type",
    "host", "content-length", "transfer-encoding", "connection", "cookie", "te", "trailer", "upgrade", "expect",
    "proxy-authorization", "idempotency-key",
})  # fmt: skip
"""Headers that a model may not set: the first ones by the specification, the others for security."""
_DELIMITERS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_USUAL_STYLES = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_ORDER = ("path", "query", "header", "cookie")
"""The order of precedence for the plain name, where several places have a parameter of the same name."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, and the name of its argument."""

    argument: str
    name: str
    place: str
    style: str
    explode: bool
    as_json: bool


@dataclass(frozen=True, slots=True)
class BodyShape:
    """The format of the body: one argument, or several that are its properties."""

    media_type: str
    argument: str | None
    properties: Mapping[str, str]
    """The properties by argument, where the body is not a single argument."""
    styles: Mapping[str, str]
    """The styles of a form's fields, where the document sets them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The description and schema of an operation's tool, and the assignment of its arguments."""

    description: str
    schema: Mapping[str, Any]
    path: str
    """The path, with argument names in its placeholders."""
    parameters: tuple[Parameter, ...]
    body: BodyShape | None
    query: str = ""
    """The fixed query parameters, encoded."""
    fixed: FixedNames = NO_NAMES
    """The names of these."""

    def spread(self, arguments: Mapping[str, Any]) -> Parts:
        """Assign the arguments to the parts of the request."""
        values = [
            (parameter, arguments[parameter.argument])
            for parameter in self.parameters
            if parameter.argument in arguments
        ]
        values = [(parameter, value) for parameter, value in values if value is not None]
        headers = {
            parameter.name: _header(parameter, value) for parameter, value in values if parameter.place == "header"
        }
        cookies = [
            f"{parameter.name}={quote(_simple(parameter, value), safe='')}"
            for parameter, value in values
            if parameter.place == "cookie"
        ]
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        content = _content(self.body, arguments)
        if self.body is not None and content is not None:
            headers["Content-Type"] = self.body.media_type
        for parameter, value in values:
            if (
                parameter.place == "query"
                and parameter.style == "form"
                and parameter.explode
                and isinstance(value, dict)
            ):
                self._refuse_fixed(value)  # its keys are names of parameters
        query = [part for parameter, value in values if parameter.place == "query" for part in _query(parameter, value)]
        return Parts(
            path={
                parameter.argument: _simple(parameter, value)
                for parameter, value in values
                if parameter.place == "path"
            },
            query="&".join([self.query, *query] if self.query else query),
            headers=headers,
            content=content,
        )

    def _refuse_fixed(self, names: Iterable[str]) -> None:
        for name in names:
            if (fixed := self.fixed.meant_by(name)) is not None:
                raise BadArgument(f"`{name}` cannot be chosen: the tool fixes {fixed}")


def shape_of(dictionary: Dictionary, operation: Operation, fixed: frozenset[str]) -> Shape:
    """Make the tool of an operation. `fixed`: headers and query parameters that the operator sets."""
    return _Shaping(dictionary, operation, fixed).shape()


class _Shaping:
    def __init__(self, dictionary: Dictionary, operation: Operation, fixed: frozenset[str]) -> None:
        self._document = dictionary.document
        self._operation = operation
        self._fixed = fixed
        self._fixed_query = FixedNames(entry.removeprefix("query ") for entry in fixed if entry.startswith("query "))
        self._schemas = Schemas(dictionary)
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []

    def shape(self) -> Shape:
        parameters = tuple(self._parameters())
        path = self._path({parameter.name: parameter.argument for parameter in parameters if parameter.place == "path"})
        body = self._body()
        schema: dict[str, Any] = {"type": "object", "properties": self._properties}
        if self._required:
            schema["required"] = self._required
        schema["additionalProperties"] = False
        if self._schemas.definitions:
            schema["$defs"] = self._schemas.definitions
        node = self._operation.node
        parts = ["Deprecated." if node.get("deprecated") is True else "", node.get("summary"), node.get("description")]
        texts = list(dict.fromkeys(part.strip() for part in parts if isinstance(part, str) and part.strip()))
        text = "\n\n".join(texts) or self._operation.title
        return Shape(
            text if len(text) <= MAX_DESCRIPTION else text[: MAX_DESCRIPTION - 1] + "…", schema, path, parameters, body
        )

    def _argument(self, name: str, place: str) -> str:
        """Return a legal and unique name."""
        clean = _ILLEGAL.sub("_", name)[:MAX_NAME]
        if not re.match(r"[A-Za-z_]", clean):
            clean = f"_{clean}"[:MAX_NAME]
        if clean not in self._properties:
            return clean
        stem = f"{place}_{clean}"[: MAX_NAME - 4]
        number = 2
        free_name = stem
        while free_name in self._properties:
            free_name = f"{stem}_{number}"
            number = number + 1
        return free_name

    # Parameters

    def _parameters(self) -> Iterator[Parameter]:
        nodes = sorted(self._declared().items(), key=lambda declared: _ORDER.index(declared[0][0]))
        for (place, name), node in nodes:
            if place == "header" and name.lower() in _OURS:
                continue
            if place == "header" and f"header {name.lower()}" in self._fixed:
                continue
            if place == "query" and self._fixed_query.meant_by(name) is not None:
                continue
            content = node.get("content")
            if not isinstance(content, Mapping) or not content:
                schema = node.get("schema", {})
                as_json_text = False
            else:
                media_type, media = next(iter(content.items()))
                if not JSON.match(media_type):
                    raise LeftOut(f"its parameter `{name}` is written as {media_type}")
                if isinstance(media, Mapping):
                    schema = media.get("schema", {})
                else:
                    schema = {}
                as_json_text = True
            if place in ("header", "cookie") and not _TOKEN.fullmatch(name):
                raise LeftOut(f"its parameter {name[:40]!r} cannot be the name of a {place}")
            style = str(node.get("style", _USUAL_STYLES[place]))
            explode = node.get("explode", style == "form")
            styles = {"query": {*_DELIMITERS, "deepObject"}}.get(place, {_USUAL_STYLES[place]})
            if style not in styles:
                raise LeftOut(f"the style {style!r} of its parameter `{name}` is not supported")
            if place != "query" and self._schemas.followed(schema).get("type") == "object":
                raise LeftOut(f"its parameter `{name}` is an object in the {place}")
            argument = self._argument(name, place)
            self._add(argument, schema, node, required=place == "path" or node.get("required") is True)
            yield Parameter(argument, name, place, style, explode is True, as_json_text)

    def _declared(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Return the parameters by place and name; those of the operation take precedence over those of its path."""
        parameters: dict[tuple[str, str], Mapping[str, Any]] = {}
        for holder in (self._operation.item, self._operation.node):
            entries = holder.get("parameters")
            for entry in entries if isinstance(entries, list) else ():
                node = self._document.followed(entry)
                place = str(node.get("in"))
                name = str(node.get("name"))
                if place not in _ORDER:
                    raise LeftOut(f"its parameter `{name}` is in {place!r}, which is no place")
                parameters[place, name] = node
        return parameters

    def _add(self, argument: str, schema: Any, node: Mapping[str, Any], *, required: bool) -> None:
        self._properties[argument] = {}
        read = self._schemas.read(schema)
        if isinstance(description := node.get("description"), str) and description.strip():
            read = {**read, "description": description.strip()[:MAX_DESCRIPTION]}
        self._properties[argument] = read
        if required:
            self._required.append(argument)

    def _path(self, arguments: Mapping[str, str]) -> str:
        """Return the path with argument names in its placeholders, each of which needs one."""

        def place(match: "re.Match[str]") -> str:
            if match.group(1) not in arguments:
                raise LeftOut(f"`{{{match.group(1)}}}` in its path is no parameter of it")
            return f"{{{arguments[match.group(1)]}}}"

        if "#" in self._operation.path or "?" in self._operation.path:
            raise LeftOut("its path holds `?` or `#`")
        return _PLACE.sub(place, self._operation.path)

    # The body

    def _body(self) -> BodyShape | None:
        if "requestBody" not in self._operation.node:
            return None
        node = self._document.followed(self._operation.node["requestBody"])
        content = node.get("content")
        media_type, media = _preferred(content if isinstance(content, Mapping) else {})
        if isinstance(media, Mapping):
            schema = media.get("schema", {})
        else:
            schema = {}
        required = node.get("required") is True
        whole = self._schemas.followed(schema)
        if required and not TEXT.match(media_type) and _is_all_properties(whole):
            return BodyShape(media_type, None, dict(self._body_properties(whole)), _styles(media))
        if FORM.match(media_type) and whole.get("type") not in ("object", None):
            raise LeftOut("its form is no object")
        argument = self._argument(BODY, "request")
        self._add(argument, {"type": "string"} if TEXT.match(media_type) else schema, node, required=required)
        return BodyShape(media_type, argument, {}, _styles(media))

    def _body_properties(self, whole: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        read = self._schemas.read(whole)
        for name, schema in read["properties"].items():
            argument = self._argument(name, BODY)
            self._properties[argument] = schema
            if name in read.get("required", ()):
                self._required.append(argument)
            yield argument, name


def _is_all_properties(schema: Mapping[str, Any]) -> bool:
    """True if an object schema has only properties, so that these can be arguments."""
    notes = {"title", "description", "example", "examples", "xml", "externalDocs", "deprecated", "default"}
    keywords = {key for key in schema if key not in notes and not str(key).startswith("x-")}
    return (
        keywords <= {"type", "properties", "required", "additionalProperties"}
        and schema.get("type", "object") == "object"
        and isinstance(schema.get("properties"), Mapping)
        and bool(schema["properties"])
        and schema.get("additionalProperties", False) is False
    )


def _styles(media: Any) -> dict[str, str]:
    encoding = media.get("encoding") if isinstance(media, Mapping) else None
    fields = encoding.items() if isinstance(encoding, Mapping) else ()
    return {
        str(name): str(keywords["style"])
        for name, keywords in fields
        if isinstance(keywords, Mapping) and "style" in keywords
    }


def _preferred(content: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the media type of the body that we support. Its parameters are ignored: we write UTF-8."""
    for kind in (JSON, FORM, TEXT):
        for media_type, media in content.items():
            if kind.match(media_type):
                return media_type.partition(";")[0].strip(), media
    # `*/*` leaves the choice to us
    for media_type, media in content.items():
        if media_type in ("*/*", "application/*"):
            return "application/json", media
    raise LeftOut(f"its body is written as {' or '.join(content) or 'nothing'}, which is not supported")


# Writing ------------------------------------------------------------------------------------------


def _query(parameter: Parameter, value: Any) -> Iterator[str]:
    """Yield the encoded pairs of one parameter; delimiters of its parts are not encoded."""
    name = _quoted(parameter, parameter.name)
    if parameter.as_json:
        yield f"{name}={_quoted(parameter, as_json(value).decode())}"
    elif parameter.style == "deepObject":
        yield from _deep(parameter, parameter.name, value)
    elif isinstance(value, dict):
        pairs = [(key, item) for key, item in value.items() if item is not None]
        if parameter.explode:
            yield from (f"{_quoted(parameter, key)}={_part(parameter, item)}" for key, item in pairs)
        else:
            flat = [part for key, item in pairs for part in (_quoted(parameter, key), _part(parameter, item))]
            yield f"{name}={_DELIMITERS[parameter.style].join(flat)}"
    elif isinstance(value, list):
        parts = [_part(parameter, item) for item in value if item is not None]
        if parameter.explode:
            yield from (f"{name}={part}" for part in parts)
        else:
            yield f"{name}={_DELIMITERS[parameter.style].join(parts)}"
    else:
        yield f"{name}={_part(parameter, value)}"


def _deep(parameter: Parameter, name: str, value: Any) -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                yield from _deep(parameter, f"{name}[{key}]", item)
        case list():
            # Not specified, but usual for servers that support brackets.
            for at, item in enumerate(value):
                yield from _deep(parameter, f"{name}[{at if isinstance(item, dict) else ''}]", item)
        case None:
            return
        case _:
            yield f"{_quoted(parameter, name)}={_part(parameter, value)}"


def _part(parameter: Parameter, value: Any) -> str:
    return _quoted(parameter, as_text(value))


def _quoted(parameter: Parameter, text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise BadArgument(f"`{parameter.argument}` is not valid text") from None


def _header(parameter: Parameter, value: Any) -> str:
    text = _simple(parameter, value)
    if not text.isascii() or _CONTROL.search(text) or text != text.strip():
        raise BadArgument(f"`{parameter.argument}` is sent in a header: plain ASCII, without spaces around it")
    return text


def _simple(parameter: Parameter, value: Any) -> str:
    if parameter.as_json:
        return as_json(value).decode()
    if isinstance(value, list):
        return ",".join(as_text(item) for item in value if item is not None)
    if isinstance(value, dict):
        raise BadArgument(f"`{parameter.argument}` must not be an object")
    return as_text(value)


def _content(body: BodyShape | None, arguments: Mapping[str, Any]) -> bytes | None:
    if body is None:
        return None
    if body.argument is not None and body.argument not in arguments:
        return None
    value: Any
    if body.argument is None:
        value = {name: arguments[argument] for argument, name in body.properties.items() if argument in arguments}
    else:
        value = arguments[body.argument]
    if JSON.match(body.media_type):
        return as_json(value)
    if FORM.match(body.media_type):
        text = _form(value, body.styles)
    else:
        text = as_text(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadArgument("the body is not valid text") from None


def _form(value: Any, styles: Mapping[str, str]) -> str:
    if not isinstance(value, dict):
        raise BadArgument("the body must be an object")
    return "&".join(
        part for name, item in value.items() if item is not None for part in _query(_field(name, item, styles), item)
    )


def _field(name: str, value: Any, styles: Mapping[str, str]) -> Parameter:
    """Return a form field as a query parameter; an object is JSON, unless the document sets a style."""
    style = styles.get(name, "form")
    is_known = style in _DELIMITERS or style == "deepObject"
    whole = isinstance(value, dict) and name not in styles
    return Parameter(name, name, "query", style if is_known else "form", explode=style == "form", as_json=whole)
