"""Resolves references in texts: `os.environ/NAME`, `${NAME}`, `${NAME:-default}` and `file:/run/secrets/name`.

A variable that is unset or empty is an error unless it has a default. If `NAME` is not set but `NAME_FILE` is, the value is
read from that file, as usual in containers.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from callgate.config.files import read_regular
from callgate.config.secret_names import means_secret

_LITELLM_PREFIX = "os.environ/"
_FILE = re.compile(r"file:(?!//)(?=\.{0,2}/)(?P<path>.+)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)\}|(?P<open>\$\{)")
_INSIDE = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<rest>:-(?P<default>.*))?\Z", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_SHELLS = re.compile(r"(?P<literal>\$)?\$(?P<name>[A-Z][A-Z0-9_]{2,})")
"""A variable in shell notation, which is probably a mistake."""

_ALMOST = 0.9
"""How similar a suggested variable has to be, because the names of providers' keys are similar."""
_MAX_SECRET_BYTES = 1 << 20
"""The limit of a secret's file; a larger file is a wrong path."""


class BadReference(ValueError):
    """Raised for a reference that cannot be resolved. The message names the variable or file, never a value."""


class Resolved(msgspec.Struct, frozen=True):
    """A text with its references resolved, and the secrets in it."""

    text: str
    secrets: tuple[str, ...] = ()
    referred: bool = False


class References:
    """Resolves references in one environment, with relative paths from the config's folder."""

    def __init__(self, environ: Mapping[str, str], folder: Path, *, lenient: bool = False) -> None:
        """`lenient`: unset references are not resolved, for commands that do not need them."""
        self._environ = environ
        self._lenient = lenient
        self._folder = folder

    def beside(self, file: Path) -> "References":
        """Return a resolver for another file."""
        return References(self._environ, file.parent, lenient=self._lenient)

    def resolve(self, text: str) -> Resolved:
        if text.startswith(_LITELLM_PREFIX):
            name = text.removeprefix(_LITELLM_PREFIX)
            if not _NAME.match(name):
                raise BadReference("`os.environ/` should be followed by the name of a variable")
            value, secret = self._variable(name, None)
            return Resolved(value, (value,) if secret else (), referred=True)
        if reference := _FILE.match(text):
            value = self._read(reference["path"])
            return Resolved(value, (value,), referred=True)
        if reference := _SHELLS.fullmatch(text):
            if reference["literal"]:
                return Resolved(text[1:])
            raise BadReference(
                f"`{text}` would be taken as it is: write `${{{reference['name']}}}`, or `$${reference['name']}` for the text"
            )
        if "${" in text:
            return self._filled_in(text)
        return Resolved(text)

    def _filled_in(self, text: str) -> Resolved:
        parts: list[str] = []
        secrets: list[str] = []
        end = 0
        for reference in _VARIABLE.finditer(text):
            parts.append(text[end : reference.start()])
            end = reference.end()
            if reference[0] == "$${":
                parts.append("${")
                continue
            if reference["open"]:
                raise BadReference("`${` is never closed; a literal `${` is written `$${`")
            if reference["inside"].startswith("input:"):
                raise BadReference(
                    f"`${{{reference['inside']}}}` asks a person at an editor, and nobody is asked here; "
                    "put the value into a variable and write `${env:NAME}`"
                )
            inside = _INSIDE.match(reference["inside"])
            if inside is None:
                raise BadReference(
                    "`${…}` takes a variable's name, or `NAME:-default`; a literal `${` is written `$${`"
                )
            value, secret = self._variable(*(inside["name"], inside["default"]))
            parts.append(value)
            if secret:
                secrets.append(value)
        return Resolved("".join(parts) + text[end:], tuple(secrets), referred=True)

    def _variable(self, name: str, default: str | None) -> tuple[str, bool]:
        """Return the value, and whether it is a secret, as all values are that are not in the config itself."""
        if value := self._environ.get(name):
            return value, True
        if path := self._environ.get(f"{name}_FILE"):
            return self._read(path), True
        if default is not None:
            return default, means_secret(name)
        if self._lenient:
            return f"${{{name}}}", False
        state = "empty" if name in self._environ else "not set"
        near = difflib.get_close_matches(name, self._environ, n=1, cutoff=_ALMOST)
        if near and state == "not set":
            hint = f"; {near[0]} is"
        else:
            hint = f": `export {name}=...` first"
        raise BadReference(f"the environment variable {name} is {state}{hint}")

    def _read(self, path: str) -> str:
        try:
            content = read_regular(self._folder / path, _MAX_SECRET_BYTES)
        except OSError as error:
            if self._lenient:
                return f"file:{path}"
            raise BadReference(f"cannot read the file {path}: {error.strerror}") from None
        try:
            value = content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise BadReference(f"the file {path} is not UTF-8 text") from None
        if not value:
            raise BadReference(f"the file {path} is empty")
        return value
