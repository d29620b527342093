"""What a running tool asks a person, what the person answers, and the form that it is asked in.

A form is a flat object of texts, numbers, switches and choices, as MCP has it for elicitation. What a server asks for is untrusted: of its
schema a new one is made, of the keywords known here, and what is no such form is refused.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from callgate.calls.unseen import visible
from callgate.tools.schema import SchemaError, compile_schema

MAX_FIELDS: Final = 40
MAX_CHOICES: Final = 200
MAX_LABEL: Final = 2_000
"""Characters of a title, a description, a choice or a default."""
MAX_MESSAGE: Final = 4_000
MAX_URL: Final = 2_000
MAX_TEXT: Final = 4_096
"""Characters of a text that is typed into a form."""
_NAME: Final = re.compile(r"[^\x00-\x1f]{1,128}")
_SECRET: Final = re.compile(
    r"pass(word|phrase|wd|code)?\b|passw|token|secret|credential|api.?key|\bkey\b|_key\b|\bpin\b|cvv", re.IGNORECASE
)
FORMATS: Final = {
    "email": re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)*"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "date": re.compile(r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])"),
    "date-time": re.compile(
        r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})?"
    ),
}
"""What a text of each format looks like."""


class BadQuestion(ValueError):
    """Raised for a question that cannot be put to a person."""


class BadAnswer(ValueError):
    """Raised for an answer that does not fit the form. The text is for the person."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Question(msgspec.Struct, frozen=True):
    """What a tool asks: by a form, or by a page that a person opens."""

    server: str
    message: str
    form: Mapping[str, Any] | None = None
    """The schema of the answer, of keywords that are known here."""
    url: str = ""
    """The page to open, where there is no form."""
    key: str = ""
    """What its server calls it, where it does."""

    @property
    def mode(self) -> Literal["form", "url"]:
        if self.form is None:
            return "url"
        return "form"

    def facts(self) -> dict[str, Any]:
        """Describe it for people."""
        facts: dict[str, Any] = {"server": self.server, "message": self.message, "mode": self.mode}
        if self.form is None:
            return {**facts, "url": self.url, "host": host_of(self.url)}
        return {**facts, "schema": self.form, "secret_fields": secret_fields(self.form)}


Action: TypeAlias = Literal["accept", "decline", "cancel"]


class PersonsAnswer(msgspec.Struct, frozen=True):
    """What a person answered; `cancel` where nobody did."""

    action: Action
    content: Mapping[str, Any] | None = None
    """What was filled in; None for a page."""


AskPerson: TypeAlias = Callable[[Question], Awaitable[PersonsAnswer]]
"""Puts a question to a person and waits for the answer. Raises `NobodyToAsk`."""


class NobodyToAsk(Exception):
    """Raised where no person can be asked. The text is for the model."""


def form_of(schema: object) -> dict[str, Any]:
    """Return a closed schema of what a server wants to be filled in. Raises `BadQuestion`."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise BadQuestion("its form is no object")
    properties = schema.get("properties")
    required = schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise BadQuestion("its form has no fields")
    if len(properties) > MAX_FIELDS:
        raise BadQuestion(f"its form has more than {MAX_FIELDS} fields")
    fields = {_name(name): _field(str(name), field) for name, field in properties.items()}
    if any(not isinstance(name, str) or name not in fields for name in required):
        raise BadQuestion("its form requires a field that it does not have")
    form = {
        "type": "object",
        "properties": fields,
        "required": list(dict.fromkeys(required)),
        "additionalProperties": False,
    }
    try:
        check = compile_schema({**form, "required": []})
    except SchemaError as error:
        raise BadQuestion(f"its form cannot be used: {error}") from None
    flaw = check({name: field["default"] for name, field in fields.items() if "default" in field})
    if flaw is not None:
        raise BadQuestion(f"a default of its form does not fit: expected {flaw.expected} at {flaw.pointer}")
    return form


def page_of(url: object) -> str:
    """Return the address of a page that a person is to open. Raises `BadQuestion`."""
    if not isinstance(url, str) or len(url) > MAX_URL or visible(url) != url or re.search(r"\s", url):
        raise BadQuestion("its address is none")
    try:
        parts = urlsplit(url)
        is_page = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
    except ValueError:
        is_page = False
    if not is_page:
        raise BadQuestion("its address is none of a web page")
    return url


def host_of(url: str) -> str:
    """Return the host of a page as browsers ask for it, so that no letter of another script looks like another."""
    host = urlsplit(url).hostname or ""
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host.encode("unicode_escape").decode()


def message_of(text: object) -> str:
    """Return what a person is told, without unseen characters. Raises `BadQuestion`."""
    if not isinstance(text, str):
        raise BadQuestion("it says nothing")
    return visible(text)[:MAX_MESSAGE]


def check_content(form: Mapping[str, Any], content: object) -> dict[str, Any]:
    """Return what was filled in. Raises `BadAnswer` where it does not fit the form."""
    if not isinstance(content, dict):
        raise BadAnswer("`content` is an object with the fields of the form.")
    fields = form["properties"]
    for name, value in content.items():
        if name not in fields:
            raise BadAnswer(f"the form has no field {name[:80]!r}.", name[:80])
        if isinstance(value, str):
            _check_text(name, value, fields[name])
    flaw = compile_schema(form)(content)
    if flaw is not None:
        raise BadAnswer(f"expected {flaw.expected}, got {flaw.got}.", flaw.pointer.lstrip("/"))
    return content


def secret_fields(form: Mapping[str, Any]) -> list[str]:
    """Return the fields that ask for a secret by their looks, for which servers must not ask in a form."""
    return [
        name
        for name, field in form["properties"].items()
        if field["type"] == "string" and _SECRET.search(f"{name} {field.get('title', '')}".replace("-", "_"))
    ]


def masked_content(form: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as it may be recorded."""
    secret = frozenset(secret_fields(form))
    return {name: "[masked]" if name in secret else value for name, value in content.items()}


def _check_text(name: str, text: str, field: Mapping[str, Any]) -> None:
    if len(text) > MAX_TEXT:
        raise BadAnswer(f"a text has at most {MAX_TEXT:,} characters.", name)
    looks = FORMATS.get(field.get("format", ""))
    if looks is not None and looks.fullmatch(text) is None:
        raise BadAnswer(f"expected a text of the format {field['format']}.", name)


def _name(name: object) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or visible(name) != name:
        raise BadQuestion("a field of its form has no name that can be shown")
    return name


def _field(name: str, field: object) -> dict[str, Any]:
    if not isinstance(field, Mapping):
        raise BadQuestion(f"its field {name[:80]!r} is no schema")
    kind = field.get("type")
    match kind:
        case "string":
            keywords = {**_choice(field), **_numbers(field, "minLength", "maxLength"), **_format(field)}
        case "number" | "integer":
            keywords = _numbers(field, "minimum", "maximum")
        case "boolean":
            keywords = {}
        case "array":
            keywords = {"items": _items(field), **_numbers(field, "minItems", "maxItems"), "uniqueItems": True}
        case _:
            raise BadQuestion(f"its field {name[:80]!r} is no text, number, switch or choice")
    plain_field = {"type": kind, **_texts(field), **keywords}
    if "default" in field and field["default"] is not None:
        plain_field["default"] = _default(name, field["default"])
    return plain_field


def _texts(field: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: visible(field[name])[:MAX_LABEL] for name in ("title", "description") if isinstance(field.get(name), str)
    }


def _numbers(field: Mapping[str, Any], *names: str) -> dict[str, float]:
    bounds = {}
    for name in names:
        number = field.get(name)
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise BadQuestion(f"its `{name}` is no number")
        bounds[name] = number
    return bounds


def _format(field: Mapping[str, Any]) -> dict[str, str]:
    name = field.get("format")
    if isinstance(name, str) and name in FORMATS:
        return {"format": name}
    return {}


def _choice(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice of a text: values, and titles for them where it has any."""
    if "enum" in field:
        values = _values(field["enum"])
        titles = field.get("enumNames")
        if isinstance(titles, list) and len(titles) == len(values):
            return {"oneOf": _titled(zip(values, titles, strict=True))}
        return {"enum": values}
    for key in ("oneOf", "anyOf"):
        if key in field:
            return {"oneOf": _constants(field[key])}
    return {}


def _items(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice of which several may be chosen."""
    items = field.get("items")
    if not isinstance(items, Mapping):
        raise BadQuestion("a list of its form has no choices")
    choice = _choice(items)
    if not choice:
        raise BadQuestion("a list of its form has no choices")
    return {"type": "string", **choice}


def _values(values: object) -> list[str]:
    if not isinstance(values, list) or not values or len(values) > MAX_CHOICES:
        raise BadQuestion("a choice of its form has no values, or too many")
    if any(not isinstance(value, str) or len(value) > MAX_LABEL for value in values):
        raise BadQuestion("a choice of its form has a value that is no text")
    return list(dict.fromkeys(values))


def _constants(options: object) -> list[dict[str, str]]:
    if not isinstance(options, list) or not all(isinstance(option, Mapping) for option in options):
        raise BadQuestion("a choice of its form has no values")
    values = [option.get("const") for option in options]
    if len(_values(values)) != len(values):
        raise BadQuestion("a choice of its form has a value twice")
    return _titled((value, option.get("title")) for value, option in zip(values, options, strict=True))


def _titled(pairs: Any) -> list[dict[str, str]]:
    return [
        {"const": value, "title": visible(title)[:MAX_LABEL] if isinstance(title, str) else value}
        for value, title in pairs
    ]


def _default(name: str, default: object) -> Any:
    """Return a default that is small enough to be shown. Whether it fits is checked for all fields together."""
    if isinstance(default, str) and len(default) > MAX_LABEL:
        raise BadQuestion(f"the default of its field {name[:80]!r} is too long")
    if isinstance(default, str | int | float | bool) or _is_texts(default):
        return default
    raise BadQuestion(f"the default of its field {name[:80]!r} is no value of it")


def _is_texts(value: object) -> bool:
    if not isinstance(value, Sequence) or len(value) > MAX_CHOICES:
        return False
    return all(isinstance(item, str) and len(item) <= MAX_LABEL for item in value)
