"""Reads an OpenAPI document from JSON or YAML, and resolves its references, servers and authentication.

References within the document only. Sizes are bounded, because a document may come from a server and grow exponentially when
its references are followed.
"""

import re
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
import yaml

from callgate.untrusted.readers import read_value
from callgate.untrusted.yaml_readers import OversizedText, SizeLimit, read_yaml

METHODS = ("get", "head", "post", "put", "patch", "delete")
MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""Twice the size of the largest public documents."""
LIMIT = SizeLimit(nodes=1_000_000, chars=MAX_DOCUMENT_BYTES)
MAX_OPERATIONS = 20_000
"""Operations of a document; the largest public one has about 15,000."""
MAX_REFERENCES = 50
"""The longest chain of references; a longer one is taken for a cycle."""

_SUPPORTED = re.compile(r"3\.[0-2](\.|$)")
_VARIABLE = re.compile(r"\{([^{}]+)\}")
_MERGE = "tag:yaml.org,2002:merge"


class BadDocument(ValueError):
    """Raised for a document from which no tools can be made. For the operator."""


class LeftOut(ValueError):
    """Raised for an operation that cannot be a tool. Does not affect others."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a document, not parsed yet."""

    method: str
    """The HTTP method in upper case."""
    path: str
    node: Mapping[str, Any]
    item: Mapping[str, Any]
    """The path item, with parameters and servers that its operations share."""

    name: str
    """Its operationId, else a name from method and path."""

    @property
    def title(self) -> str:
        return f"{self.method} {self.path}"

    def selectors(self) -> tuple[str, ...]:
        """Return the texts by which it can be selected: its name, its method and path, its tags."""
        tags = self.node.get("tags")
        if not isinstance(tags, list):
            return (self.name, self.title)
        return (self.name, self.title, *map(str, tags))


def _name_of(method: str, path: str, node: Mapping[str, Any]) -> str:
    operation_id = node.get("operationId")
    if isinstance(operation_id, str) and operation_id.strip():
        return operation_id.strip()
    return f"{method.lower()}_" + re.sub(r"[^A-Za-z0-9]+", "_", path).strip("_")


@dataclass(frozen=True, slots=True)
class Credential:
    """Where the credentials of one security scheme go in a request."""

    scheme: str
    """The scheme's name in the document."""
    place: Literal["header", "query"]
    name: str
    """The name of the header or parameter."""
    form: Literal["plain", "cookie", "basic", "bearer"] = "plain"
    cookie: str = ""
    """The name of the cookie."""

    def filled(self, secret: str) -> str:
        """Return the value of the header or parameter."""
        match self.form:
            case "plain":
                return secret
            case "cookie":
                return f"{self.cookie}={secret}"
            case "basic":
                return f"Basic {b64encode(secret.encode()).decode('ascii')}"
            case "bearer":
                return f"Bearer {secret}"


class OpenApiDocument:
    """A document of version 3.0, 3.1 or 3.2."""

    def __init__(self, root: Mapping[str, Any], address: str | None = None) -> None:
        """`address`: its URL, if it has one."""
        version = str(root.get("openapi", ""))
        if not _SUPPORTED.match(version):
            if "swagger" in root:
                why = f"it is Swagger {root['swagger']}; convert it to OpenAPI 3"
            elif version:
                why = f"its version is {version[:20]!r}, and 3.0 to 3.2 are read"
            else:
                why = "it is no OpenAPI document"
            raise BadDocument(why)
        paths = root.get("paths", {})
        if not isinstance(paths, Mapping):
            raise BadDocument("`paths` is no mapping")
        self.root = root
        self.address = address
        self.is_3_0 = version.startswith("3.0")
        self._paths = paths

    @classmethod
    def read(cls, text: str, address: str | None = None) -> "OpenApiDocument":
        root = _parsed(text)
        if not isinstance(root, dict):
            raise BadDocument("it is no mapping of keys to values")
        return cls(root, address)

    def operations(self) -> Iterator[Operation]:
        count = 0
        for path, item in self._paths.items():
            if not str(path).startswith("/"):
                continue  # extensions (`x-…`)
            whole = self.followed(item)
            for method in METHODS:
                if isinstance(node := whole.get(method), Mapping):
                    count += 1
                    if count > MAX_OPERATIONS:
                        raise BadDocument(f"it has more than {MAX_OPERATIONS} operations")
                    yield Operation(method.upper(), str(path), node, whole, _name_of(method, str(path), node))

    def followed(self, node: Any) -> Mapping[str, Any]:
        """Return a node with its references resolved."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(node, Mapping):
                raise LeftOut("something in it is no mapping where one should be")
            if not isinstance(reference := node.get("$ref"), str):
                return node
            node = self.at(reference)
        raise LeftOut("a reference leads round in a ring")

    def at(self, reference: str) -> Any:
        """Return the node that a reference names."""
        if not reference.startswith("#"):
            raise LeftOut(f"`$ref: {reference[:100]}` leads out of the document, and nothing is fetched")
        node: Any = self.root
        for step in unquote(reference[1:]).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise LeftOut(f"`$ref: {reference[:100]}` leads nowhere")
        return node

    def server(self, operation: Operation) -> str:
        """Return the URL of an operation's server, by the document."""
        for node in (operation.node, operation.item, self.root):
            servers = node.get("servers")
            if isinstance(servers, list) and servers and isinstance(servers[0], Mapping):
                return self._absolute(_with_defaults(servers[0]))
        return self._absolute("/")

    def _absolute(self, server: str) -> str:
        try:
            if self.address:
                absolute = urljoin(self.address, server)
            else:
                absolute = server
        except ValueError:  # such as brackets around what is no IPv6 address
            raise LeftOut(f"its server `{server[:100]}` is no address; `base_url` can say where it is") from None
        if not absolute.startswith(("http://", "https://")):
            raise LeftOut(f"its server `{server}` is no address; `base_url` can say where it is")
        if self.address and _origin(absolute) != _origin(self.address):
            # A document from the network must not decide where credentials are sent.
            raise LeftOut(
                f"its server {absolute} is another than the document's; if that is meant, say so with `base_url`"
            )
        return absolute

    def schemes(self) -> Mapping[str, Any]:
        components = self.root.get("components")
        if isinstance(components, Mapping):
            schemes = components.get("securitySchemes")
        else:
            schemes = None
        if isinstance(schemes, Mapping):
            return schemes
        return {}

    def credentials(self, operation: Operation, available: Collection[str]) -> tuple[Credential, ...]:
        """Return what the operation's first security requirement takes for which all schemes are available; nothing if it needs
        none."""
        ways = operation.node.get("security", self.root.get("security"))
        for way in ways if isinstance(ways, list) else ():
            if isinstance(way, Mapping) and way and all(name in available for name in way):
                return tuple(map(self._credential, way))
        return ()

    def _credential(self, name: str) -> Credential:
        scheme = self.followed(self.schemes().get(name))
        match scheme.get("type"), scheme.get("in"), str(scheme.get("scheme", "")).lower():
            case "apiKey", "header", _:
                return Credential(name, "header", str(scheme.get("name")))
            case "apiKey", "query", _:
                return Credential(name, "query", str(scheme.get("name")))
            case "apiKey", "cookie", _:
                return Credential(name, "header", "Cookie", "cookie", str(scheme.get("name")))
            case "http", _, "basic":
                return Credential(name, "header", "Authorization", "basic")
            case ("http", _, "bearer") | ("oauth2" | "openIdConnect", _, _):
                return Credential(name, "header", "Authorization", "bearer")
            case kind, _, way:
                raise LeftOut(f"authentication by {kind} {way}".rstrip() + " is not supported")


def _with_defaults(server: Mapping[str, Any]) -> str:
    variables = server.get("variables")
    variables_by_name = variables if isinstance(variables, Mapping) else {}

    def default(match: "re.Match[str]") -> str:
        variable = variables_by_name.get(match.group(1))
        if isinstance(variable, Mapping):
            return str(variable.get("default", ""))
        return match.group()

    return _VARIABLE.sub(default, str(server.get("url", "")))


def _origin(address: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(address)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or usual


# Reading ------------------------------------------------------------------------------------------


def _parsed(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return read_value(LIMIT.open_json(text))
        except OversizedText as large:
            raise BadDocument(str(large)) from None
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise BadDocument(f"not readable as JSON: {error}") from None
    try:
        return read_yaml(LIMIT.open_yaml(text), _JsonYamlLoader)
    except OversizedText as large:
        raise BadDocument(f"line {large.line}: {large}") from None
    except yaml.YAMLError as error:
        raise BadDocument(f"not readable as YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise BadDocument("nested too deeply") from None
    except (
        ValueError,
        AttributeError,
        LookupError,
        TypeError,
    ):  # from PyYAML for an invalid tagged value such as `!!int abc`
        raise BadDocument("not readable as YAML: a value is not what its tag or its looks promise") from None


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C is ten times as fast, which matters for long documents."""


class _JsonYamlLoader(_Base):  # type: ignore[misc]  # which of the two it is depends on how PyYAML was built
    """Loads YAML with JSON's types, as OpenAPI requires: no dates, `no` is a string, and `010` is ten."""

    def flatten_mapping(self, node: Any) -> None:
        """Put merged entries before the node's own entries, which take precedence."""
        brought: list[Any] = []
        children: list[Any] = []
        for key, value in node.value:
            if key.tag != _MERGE:
                children.append((key, value))
                continue
            is_sequence = isinstance(value, yaml.SequenceNode)
            for other in reversed(value.value) if is_sequence else (value,):
                if not isinstance(other, yaml.MappingNode):
                    raise yaml.MarkedYAMLError(problem="a merge key takes mappings", problem_mark=other.start_mark)
                self.flatten_mapping(other)
                entries: list[Any] = other.value
                brought += entries
        node.value = brought + children


_JsonYamlLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", "<<", "<"),
):
    _JsonYamlLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def _mapping(loader: Any, node: Any) -> dict[str, Any]:
    loader.flatten_mapping(node)
    return {
        str(loader.construct_object(key, deep=True)): loader.construct_object(value, deep=True)
        for key, value in node.value
    }


_JSON_TYPES = frozenset(f"tag:yaml.org,2002:{name}" for name in "map seq str int float bool null".split())
_JsonYamlLoader.yaml_constructors = {
    tag: construct for tag, construct in _Base.yaml_constructors.items() if tag is None or tag in _JSON_TYPES
}
_JsonYamlLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
_JsonYamlLoader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))
