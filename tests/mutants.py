"""Changes one small thing of a module at a time, and prints the changes that no test notices.

    python -m tests.mutants app/callgate/calls/gate.py [TESTS…]

The tests (by default the folder of the module's package, and the corpus) are collected once, and run once to learn which lines of
the module each of them reaches. Then each change is made in a fork of the process, and tried by the tests that reach its
lines until one fails. Bodies and defaults of functions are changed, not what a module or a class says when it is imported.
"""

import ast
import gc
import os
import resource
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

T = TypeVar("T")
CORPUS = "tests/test_corpus.py"
SECONDS = 10.0
"""What the tests of one change may take together, by what each took before; the quickest are tried."""
PATIENCE = 20.0
"""How much longer they may take before the change counts as noticed: something waits for ever."""
MEMORY = 2 << 30
"""Bytes that a process with a change may hold."""

SWAPPED: dict[type[ast.AST], list[ast.AST]] = {
    ast.Eq: [ast.NotEq()],
    ast.NotEq: [ast.Eq()],
    ast.Is: [ast.IsNot()],
    ast.IsNot: [ast.Is()],
    ast.In: [ast.NotIn()],
    ast.NotIn: [ast.In()],
    ast.Lt: [ast.LtE(), ast.GtE()],
    ast.LtE: [ast.Lt(), ast.Gt()],
    ast.Gt: [ast.GtE(), ast.LtE()],
    ast.GtE: [ast.Gt(), ast.Lt()],
    ast.And: [ast.Or()],
    ast.Or: [ast.And()],
    ast.Add: [ast.Sub()],
    ast.Sub: [ast.Add()],
    ast.BitOr: [ast.BitAnd()],
    ast.BitAnd: [ast.BitOr()],
    ast.Break: [ast.Continue(), ast.Pass()],
    ast.Continue: [ast.Break(), ast.Pass()],
}
DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
LEFT = ast.If | ast.While | ast.Return | ast.Pass | ast.Break | ast.Continue | ast.Import | ast.Nonlocal | ast.Global
SHOWN = 40
"""Characters shown on each side of a change."""


class Change(NamedTuple):
    lines: range
    """Of the statement it is in."""
    text: str
    tree: ast.Module
    """Changed only until the next one is asked for."""


class Reached(msgspec.Struct):
    """What a test did while nothing was changed."""

    passed: bool
    seconds: float
    lines: set[int]


def main(path: str, *tests: str) -> int:
    package = Path(path).resolve().relative_to(Path("app/callgate").resolve()).parts[0]
    options = ["--quiet", "-pno:cacheprovider", *(tests or (f"tests/{package}", CORPUS))]
    return int(pytest.main(options, plugins=[Mutants(Path(path).resolve())]))


class Mutants:
    """Tries the changes of one module, where pytest would run the tests."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.unregister(name="terminalreporter")
        reached = in_fork(partial(trace, self.path, session.items), 3600.0, dict[str, Reached])
        if reached is None:
            pytest.exit("the tests do not run while nothing is changed")
        for id in [id for id, known in reached.items() if not known.passed]:
            print(f"left out, as it fails while nothing is changed: {id}")
            del reached[id]
        items = {item.nodeid: item for item in session.items}
        found, missed, found_by = 0, 0, Counter[str]()
        for change in changes(ast.parse(self.path.read_text())):
            able = [id for id, known in reached.items() if not known.lines.isdisjoint(change.lines)]
            chosen: list[pytest.Item] = []
            seconds = 0.0
            for id in sorted(able, key=lambda one: (-found_by[one], reached[one].seconds)):
                seconds += reached[id].seconds
                if chosen and seconds > SECONDS:
                    break
                chosen.append(items[id])
            trial = partial(attempt, self.path, change.tree, chosen)
            failed = in_fork(trial, 2 * seconds + PATIENCE, str) if chosen else ""
            if failed == "":
                missed += 1
                print(f"{change.lines[0]}: {change.text}  ({len(chosen)} of {len(able)} tests)", flush=True)
                continue
            found += 1
            if failed is None:
                print(f"{change.lines[0]}: {change.text}  (the tests died, or waited for ever)", flush=True)
            else:
                found_by[failed] += 1
        print(f"{self.path.name}: {found + missed} changes, {found} found, {missed} not")
        return True


# What is changed ------------------------------------------------------------------------------------------------------


def changes(tree: ast.Module) -> Iterator[Change]:
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
        whole = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        for part in (function.args, *function.body):
            for lines, text in _inside(function, part, whole):
                yield Change(lines, text, tree)


def _inside(parent: ast.AST, node: ast.AST, lines: range) -> Iterator[tuple[range, str]]:
    """Changes the node, and each node in it, one after the other."""
    if isinstance(node, DEFINITION | ast.Assert):
        return
    if isinstance(node, ast.stmt):
        body = getattr(node, "body", None)
        end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
        lines = range(node.lineno, max(end, node.lineno + 1))
    for other in _instead_of(parent, node):
        is_operator = isinstance(node, ast.operator | ast.cmpop | ast.boolop)
        before = ast.unparse(parent if is_operator else node)
        _replace(parent, node, other)
        after = ast.unparse(parent if is_operator else other)
        yield lines, _difference(before, after)
        _replace(parent, other, node)
    for name, value in ast.iter_fields(node):
        if name != "annotation":
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _inside(node, child, lines)


def _difference(before: str, after: str) -> str:
    """Both, from a little before the place where they part to where they are the same again."""
    start = _shared(before, after)
    end = _shared(before[start:][::-1], after[start:][::-1])
    parts = [text[max(0, start - SHOWN) : len(text) - max(0, end - SHOWN)] for text in (before, after)]
    return "  =>  ".join(part if "\n" not in part else part.partition("\n")[0] for part in parts)


def _shared(one: str, other: str) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _replace(parent: ast.AST, node: ast.AST, other: ast.AST) -> None:
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, other)
        elif isinstance(value, list):
            value[:] = [other if one is node else one for one in value]


def _instead_of(parent: ast.AST, node: ast.AST) -> list[ast.AST]:
    others = [*SWAPPED.get(type(node), ()), *_without_a_part(node)]
    match node:
        case ast.Constant(bool() as value):
            others.append(ast.Constant(not value))
        case ast.Constant(int() | float() as value):
            others += [ast.Constant(value + 1), ast.Constant(value - 1)]
        case ast.Return(ast.Compare() | ast.BoolOp() | ast.UnaryOp(ast.Not())):
            others += [ast.Return(ast.Constant(value)) for value in (True, False)]
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            others.append(ast.Return(ast.Constant(None)))
        case ast.expr() if node is getattr(parent, "test", None):
            others += [ast.Constant(value) for value in (True, False)]
        case ast.expr() if isinstance(parent, ast.comprehension) and node in parent.ifs:
            others.append(ast.Constant(True))
    return [ast.copy_location(other, node) if isinstance(other, ast.expr | ast.stmt) else other for other in others]


def _without_a_part(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.Expr(ast.Constant()):  # a docstring
            return []
        case ast.UnaryOp(ast.Not(), operand):
            return [operand]
        case ast.BoolOp(_, [left, right]):
            return [left, right]
        case ast.BoolOp(operator, values):
            return [ast.BoolOp(operator, [*values[:at], *values[at + 1 :]]) for at in range(len(values))]
        case ast.Call(function, arguments, keywords):
            named = [[*keywords[:at], *keywords[at + 1 :]] for at in range(len(keywords))]
            last = [ast.Call(function, arguments[:-1], keywords)] if arguments else []
            return [*last, *(ast.Call(function, arguments, those) for those in named)]
        case ast.ExceptHandler(kind, name, [*body]) if not isinstance(body[0], ast.Pass):
            return [ast.ExceptHandler(kind, name, [ast.Pass()])]
        case ast.stmt() if not isinstance(node, LEFT):
            return [ast.Pass()]
    return []


# How it is tried ------------------------------------------------------------------------------------------------------


def trace(path: Path, items: Sequence[pytest.Item]) -> dict[str, Reached]:
    """Runs each test and notes the lines of the module that it reaches."""
    lines: set[int] = set()

    def in_module(frame: FrameType, event: str, argument: Any) -> Any:
        lines.add(frame.f_lineno)
        return in_module

    def anywhere(frame: FrameType, event: str, argument: Any) -> Any:
        return in_module(frame, event, argument) if frame.f_code.co_filename == str(path) else None

    threading.settrace(anywhere)
    reached = {}
    for item, following in zip(items, [*items[1:], None], strict=True):
        sys.settrace(anywhere)  # anew, for it is off once it was called too deep in a recursion
        lines.clear()
        began = time.monotonic()
        passed = runs(item, following)
        reached[item.nodeid] = Reached(passed, time.monotonic() - began, set(lines))
    return reached


def attempt(path: Path, tree: ast.Module, items: Sequence[pytest.Item]) -> str:
    """Makes the change, and names the first test that fails by it."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    put_in_place(path, tree)
    for item, following in zip(items, [*items[1:], None], strict=True):
        if not runs(item, following):
            item.session._setupstate.teardown_exact(None)
            return item.nodeid
    return ""


def runs(item: pytest.Item, following: pytest.Item | None) -> bool:
    failed = item.session.testsfailed
    item.session.shouldfail = False
    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    return item.session.testsfailed == failed


def put_in_place(path: Path, tree: ast.Module) -> None:
    """Gives each function of the module its changed code and defaults, wherever it was imported."""
    codes = _codes(compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True))
    arguments = {
        min([node.lineno, *(one.lineno for one in node.decorator_list)]): node.args
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    gc.unfreeze()  # what is frozen is not among all objects
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == str(path):
            old, given = function.__code__, arguments.get(function.__code__.co_firstlineno)
            function.__code__ = codes.get((old.co_qualname, old.co_firstlineno), old)
            if given is None or function.__name__ == "<lambda>":
                continue
            if function.__defaults__:
                function.__defaults__ = tuple(map(_default, given.defaults, function.__defaults__))
            for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
                if isinstance(default, ast.Constant) and function.__kwdefaults__:
                    function.__kwdefaults__[argument.arg] = default.value


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """The code of all functions; none for two lambdas in one line, which cannot be told apart."""
    found: dict[tuple[str, int], list[CodeType]] = {}
    waiting = [code]
    while waiting:
        inner = [one for one in waiting.pop().co_consts if isinstance(one, CodeType)]
        waiting += inner
        for one in inner:
            found.setdefault((one.co_qualname, one.co_firstlineno), []).append(one)
    return {key: those[0] for key, those in found.items() if len(those) == 1}


def _default(written: ast.expr, value: Any) -> Any:
    return written.value if isinstance(written, ast.Constant) else value


def in_fork(work: Callable[[], Any], seconds: float, kind: type[T]) -> T | None:
    """What the work returns in a fork of this process; None if the fork dies, or takes longer and is ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(msgspec.json.encode(work()))
        finally:
            os._exit(0)
    os.close(writing)
    until, answer = time.monotonic() + seconds, b""
    try:
        while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
            piece = os.read(reading, 1 << 20)
            if not piece:
                break
            answer += piece
    finally:
        os.close(reading)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return msgspec.json.decode(answer, type=kind) if answer else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
