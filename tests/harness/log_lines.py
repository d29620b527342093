"""The lines of code that log something, found without running them."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.harness.sources import trees_with

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
WRITES = {"write": frozenset[str](), "write_usual": frozenset({"ms"})}
"""The methods of a logger that are given a level, an event and a dict of fields, and the fields beside those."""
LOGGERS = {"log", "audit", "_log"}
"""What our loggers are called; `say` is one of two methods of a logger."""


@dataclass(frozen=True)
class LogLine:
    where: str
    logger: str
    """Empty where its name does not stand in the module."""
    event: str | None
    levels: frozenset[str]
    fields: frozenset[str]


@cache
def logged() -> Sequence[LogLine]:
    return tuple(_logged())


def _logged() -> Iterator[LogLine]:
    for file, tree in trees_with(("say(", *(f".{method}(" for method in WRITES), *(f".{level}(" for level in LEVELS))):
        prints = "callgate.telemetry.terminal import" in file.read_text(
            "utf-8"
        )  # by a function that is called `say` too
        loggers = loggers_of(tree)
        for node in ast.walk(tree):
            if prints and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                continue
            if isinstance(node, ast.Call) and (levels := levels_of(node.func)):
                first = node.args[0] if node.args else None
                fields = {word.arg for word in node.keywords if word.arg}
                if isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
                    _, first, written, *_ = node.args
                    fields = {str(key.value) for key in getattr(written, "keys", ()) if isinstance(key, ast.Constant)}
                    fields |= WRITES[node.func.attr]
                event = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
                if levels == {"exception"}:
                    fields.add("exc_info")
                names = frozenset(LEVELS[level] for level in levels)
                logger = loggers.get(receiver_of(node.func), "")
                yield LogLine(f"{file.relative_to(ROOT)}:{node.lineno}", logger, event, names, frozenset(fields))


def loggers_of(tree: ast.Module) -> Mapping[str, str]:
    """The names of the loggers that a module makes, by the variables that hold them."""
    loggers = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.Call() as value):
                texts = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
                names = [text for text in texts if isinstance(text, str) and text.startswith("callgate.")]
                if names:
                    loggers[receiver_name(target)] = names[0]
    return loggers


def receiver_of(called: ast.expr) -> str:
    return receiver_name(called.value) if isinstance(called, ast.Attribute) else "log"


def receiver_name(receiver: ast.expr) -> str:
    """`log` of `log` and of `self.log`; empty for what is neither."""
    match receiver:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def levels_of(called: ast.expr) -> set[str]:
    """The methods of a logger that a call may be of; none where it is no logging."""
    if isinstance(called, ast.Name) and called.id == "say":
        return {"info", "warning"}
    if isinstance(called, ast.Attribute) and called.attr in WRITES and receiver_of(called) in LOGGERS:
        return {"info", "warning"}
    if not isinstance(called, ast.Attribute) or called.attr not in LEVELS:
        return set()
    return {called.attr} if receiver_of(called) in LOGGERS else set()
