"""Reads a `Config` from a file, the environment and the command line. All mistakes are reported at once, with their places.

The order of precedence: flags, `CALLGATE_*` variables, the file, the defaults. Without a file the built-in one is read: the
demo model and the built-in tools.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from callgate.config.document import Document, read_document
from callgate.config.files import near_file, read_text
from callgate.config.mcp_file import BLOCKS, take_in_servers
from callgate.config.mistakes import problems_of
from callgate.config.otel import take_in_variables
from callgate.config.problems import COMMAND_LINE, ConfigError, Problem, Spot, without_secrets
from callgate.config.references import References
from callgate.config.schema.values import FOLDER
from callgate.config.schema.whole import Config
from callgate.config.unprinted import Unprinted
from callgate.untrusted.pydantic_readers import check_model

ENVIRONMENT: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "CALLGATE_HOST": ("server", "host"),
        "CALLGATE_PORT": ("server", "port"),
        "CALLGATE_LOG_LEVEL": ("logging", "level"),
    }
)
"""Variables that take precedence over the file, and their settings."""

SEALING_VARIABLE: Final = "CALLGATE_SECRET"
"""The variable with the secrets that this server seals with."""
CONFIG_VARIABLE: Final = "CALLGATE_CONFIG"
USUAL_FILE: Final = "config.yaml"
REFERRING: Final = re.compile(r"\$\{|\Afile:")
"""Texts with unresolved references."""
FALLBACKS: Final = re.compile(r"model_list\.\d+\.fallbacks\b")
"""Settings whose names the schema can check only if the other entries are valid."""
_ROUNDS: Final = 3
DEFAULT_FILE: Final = Path(__file__).with_name("default.yaml")


class Loaded(Unprinted, frozen=True):
    """A config, with facts from reading it."""

    unprinted = frozenset({"secrets", "spots"})

    config: Config
    path: Path | None
    """The file; None for the built-in one."""
    secrets: frozenset[str]
    """All secrets that were read, to mask them in logs and responses."""

    spots: Mapping[tuple[str | int, ...], Spot] = msgspec.field(default_factory=dict)
    """The place of each setting."""
    from_command_line: bool = False

    def complaint(self, *mistakes: tuple[tuple[str | int, ...], str]) -> ConfigError:
        """Return the error for mistakes that are found when something is built from settings, by their places."""
        if self.from_command_line:
            source = COMMAND_LINE
        else:
            source = _shown(self.path or DEFAULT_FILE)
        problems = []
        for path, message in mistakes:
            spot = next(
                (nearest for end in range(len(path), 0, -1) if (nearest := self.spots.get(path[:end]))), Spot(source)
            )
            problems.append(Problem(spot, ".".join(map(str, path)), message))
        return ConfigError(without_secrets(problems, self.secrets))

    def files(self) -> tuple[Path, ...]:
        """Return the files of the config, to watch them."""
        if self.path is None:
            return ()
        servers = self.config.mcp_config
        if servers is None:
            return (self.path,)
        return (self.path, self.path.parent / Path(servers).expanduser())

    def folder(self) -> Path:
        """Return the base folder of relative paths in the config."""
        return _folder_of(self.path)


def load(
    path: Path | str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    lenient: bool = False,
    text: str | None = None,
) -> Loaded:
    """Read the config. Raises `ConfigError`.

    `flags`: settings by dotted names (`{"server.port": 9000}`); None values are ignored. `lenient`: variables may be missing,
    and references to them stay unresolved. `text`: read instead of a file, for a config from the command line.
    """
    if environ is None:
        environ = os.environ
    if text is None:
        config_file = find(path, environ)
        file = config_file or DEFAULT_FILE
    else:
        config_file = None
        file = Path.cwd() / COMMAND_LINE
    references = References(environ, file.parent, lenient=lenient)
    document = read_document(_text_of(file) if text is None else text, _shown(file), references)
    if text is not None:
        document.without_lines()
    take_in_servers(document, file.parent, references)
    take_in_variables(document, environ)
    _outrank(document, environ, flags or {})
    document.secrets.update(secret.strip() for secret in environ.get(SEALING_VARIABLE, "").split(","))
    # A block with only comments is null in YAML, and means the defaults.
    if document.value is None:
        document.value = {}
    elif isinstance(document.value, dict):
        document.value = {name: block for name, block in document.value.items() if block is not None}
    places = {**document.keys, **document.values}

    def loaded(value: Any) -> Loaded:
        config = check_model(Config, value, context={FOLDER: _folder_of(config_file)})
        return Loaded(config, config_file, frozenset(filter(None, document.secrets)), places, text is not None)

    try:
        config = loaded(document.value)
    except ValidationError as error:
        if lenient and not document.problems and (usable := _without_unset(document.value, error)) is not None:
            return loaded(usable)
        problems = [*document.problems, *problems_of(document, error)]
        wrong = [detail["loc"] for detail in error.errors()]
        valid = None
        for _ in range(_ROUNDS):
            try:
                valid = loaded(_without(document.value, wrong))
                break
            except ValidationError as hidden:  # checks that need valid entries
                problems += [problem for problem in problems_of(document, hidden) if FALLBACKS.match(problem.path)]
                wrong += [detail["loc"] for detail in hidden.errors()]
        raise ConfigError(without_secrets(problems, document.secrets), valid) from None
    if document.problems:
        raise ConfigError(without_secrets(document.problems, document.secrets), config)
    return config


def find(path: Path | str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file to read: the given one, that of the environment, `./config.yaml`, or None for the built-in one."""
    if named := path or environ.get(CONFIG_VARIABLE):
        return Path(named)
    usual = Path(USUAL_FILE)
    if usual.is_file():
        return usual
    return None


_STAND_INS: Final[Mapping[str, Callable[[int, Any], dict[str, Any]]]] = MappingProxyType(
    {
        "model_list": lambda index, entry: {
            "model_name": _name_in(entry) or f"left-out-{index}",
            "litellm_params": {"model": "demo/demo"},
        },
        "tools": lambda index, entry: {
            "kind": "http",
            "name": f"left_out_{index}",
            "description": "-",
            "url": "http://0.invalid",
        },
    }
)
"""Placeholders for removed entries, so that the others keep their indexes."""


def _name_in(entry: Any) -> str:
    name = entry.get("model_name") if isinstance(entry, dict) else None
    if isinstance(name, str):
        return name
    return ""


def _without(value: Any, places: Iterable[tuple[str | int, ...]]) -> Any:
    """Return a config without the settings at these places: single entries of models, tools and MCP servers, other blocks as a
    whole."""
    if not isinstance(value, dict):
        return value
    valid = dict(value)
    for block, *inner in places:
        entries = valid.get(str(block))
        at = next(iter(inner), None)
        if isinstance(entries, list) and isinstance(at, int) and block in _STAND_INS:
            valid[str(block)] = [*entries[:at], _STAND_INS[str(block)](at, entries[at]), *entries[at + 1 :]]
        elif isinstance(entries, dict) and at in entries and block in BLOCKS:
            valid[str(block)] = {name: entry for name, entry in entries.items() if name != at}
        else:
            valid.pop(str(block), None)
    return valid


def _without_unset(value: Any, error: ValidationError) -> Any:
    """Return a config without the blocks that are invalid only because of unset references; None if more is wrong. Keys stay by
    name, with hashes that no key can have."""
    wrong = error.errors()
    if not all(isinstance(detail["input"], str) and REFERRING.search(detail["input"]) for detail in wrong):
        return None
    hashes = {detail["loc"][1] for detail in wrong if detail["loc"][0] == "keys" and detail["loc"][2:] == ("hash",)}
    keys = [
        {**key, "hash": f"sha256:{at:064x}"} if at in hashes else key for at, key in enumerate(value.get("keys") or ())
    ]
    others = [detail["loc"] for detail in wrong if detail["loc"][0] != "keys"]
    return _without({**value, "keys": keys} if hashes else value, others)


def _folder_of(path: Path | None) -> Path:
    if path is None:
        return Path.cwd()
    return path.resolve().parent


def _text_of(file: Path) -> str:
    try:
        return read_text(file)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            hint = near_file(file) or "; `callgate init` writes one"
        else:
            hint = ""
        raise ConfigError([Problem(Spot(str(file)), "", f"cannot be read: {error.strerror}{hint}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem(Spot(str(file)), "", "is not UTF-8 text: save it as UTF-8")]) from None


def _shown(file: Path) -> str:
    if file.name == COMMAND_LINE:
        return COMMAND_LINE
    if file == DEFAULT_FILE:
        return "built-in config"
    return str(file)


def _outrank(document: Document, environ: Mapping[str, str], flags: Mapping[str, Any]) -> None:
    for variable, path in ENVIRONMENT.items():
        if value := environ.get(variable):
            document.put(path, value, Spot(f"environment variable {variable}"))
    for name, value in flags.items():
        if value is not None:
            document.put(tuple(name.split(".")), value, Spot(COMMAND_LINE))
