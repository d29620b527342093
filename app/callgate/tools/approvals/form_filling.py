"""Fills the form of a tool's question at a terminal, field by field. It reads and writes nothing itself."""

from collections.abc import Iterator, Mapping
from typing import Any

from callgate.tools.questions import BadAnswer, check_content

YES = frozenset({"y", "yes", "true", "on", "1"})
NO = frozenset({"n", "no", "false", "off", "0"})


class FormFilling:
    """The fields of a form, asked for one after the other: show `prompt`, feed the line that was typed."""

    def __init__(self, form: Mapping[str, Any]) -> None:
        self._form = form
        self._left = list(form["properties"].items())
        self.content: dict[str, Any] = {}

    def prompt(self) -> str | None:
        """Return what to ask for next; None where all is filled in."""
        if not self._left:
            return None
        name, field = self._left[0]
        parts = [f"{field.get('title') or name}{' *' if name in self._form['required'] else ''}"]
        if field.get("description"):
            parts.append(f"({field['description']})")
        if choices := _choices(field):
            parts.append("[" + ", ".join(f"{number} {title}" for number, (_, title) in enumerate(choices, 1)) + "]")
        elif field["type"] == "boolean":
            parts.append("[y/n]")
        if "default" in field:
            parts.append(f"<{_shown(field['default'])}>")
        return " ".join(parts) + ": "

    def feed(self, line: str) -> str:
        """Take what was typed for the field of the prompt. Return what is wrong with it, empty where it is taken; an empty line takes
        the default, or leaves out what is not required."""
        name, field = self._left[0]
        try:
            if line:
                value = _value(field, line)
                check_content({**self._form, "required": []}, {name: value})
                self.content[name] = value
            elif "default" in field:
                self.content[name] = field["default"]
            elif name in self._form["required"]:
                return "it is required"
        except BadAnswer as error:
            return str(error)
        self._left.pop(0)
        return ""


def filled(form: Mapping[str, Any], pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a form of texts by field, with the defaults of the others. Raises `BadAnswer`."""
    if unknown := sorted(pairs.keys() - form["properties"].keys()):
        raise BadAnswer(f"the form has no field {unknown[0]!r}.", unknown[0])
    content: dict[str, Any] = {}
    for name, field in form["properties"].items():
        if name in pairs:
            content[name] = _value(field, pairs[name])
        elif "default" in field:
            content[name] = field["default"]
    return check_content(form, content)


def question_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Say what a tool asks, its server first."""
    yield f"{facts['server']} asks, while running {facts['tool']}: {facts['message']}"
    if facts["mode"] == "url":
        yield f"It wants this page of {facts['host']} to be opened: {facts['url']}"
    for name in facts.get("secret_fields", ()):
        yield f"{name} looks like a secret: servers must not ask for one in a form."


def _choices(field: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the values of a choice with their titles."""
    holder = field.get("items", field)
    if "enum" in holder:
        return [(value, value) for value in holder["enum"]]
    return [(option["const"], option["title"]) for option in holder.get("oneOf", ())]


def _value(field: Mapping[str, Any], line: str) -> Any:
    """Convert a line to the type of its field. Raises `BadAnswer`."""
    choices = _choices(field)
    if field["type"] == "array":
        return [_chosen(choices, part.strip()) for part in line.split(",") if part.strip()]
    if choices:
        return _chosen(choices, line.strip())
    try:
        match field["type"]:
            case "integer":
                return int(line)
            case "number":
                return float(line)
            case "boolean":
                return _switch(line)
    except ValueError:
        raise BadAnswer(f"expected {field['type']}.") from None
    return line


def _switch(line: str) -> bool:
    word = line.strip().lower()
    if word not in YES | NO:
        raise ValueError
    return word in YES


def _chosen(choices: list[tuple[str, str]], word: str) -> str:
    for value, title in choices:
        if word in (value, title):
            return value
    if word.isdecimal() and 1 <= int(word) <= len(choices):
        return choices[int(word) - 1][0]
    raise BadAnswer(f"{word[:80]!r} is none of the choices.")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "y" if value else "n"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
