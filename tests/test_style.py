"""The habits that make code hard to read do not come back, see `tests/style.py`."""

import ast
import re
from collections import Counter

import pytest

from tests import style
from tests.style import GOALS

MOST_HELPERS = 15
"""How many test modules may have a helper of one name: of more, a name says nothing. Only ever lowered."""
BY_PROTOCOL = frozenset({"drivers", "fuzz", "servers"})
"""Folders of tests whose functions have the names that their caller looks for."""


@pytest.mark.parametrize("package", style.packages())
def test_a_package_keeps_to_the_goals(package: str) -> None:
    amounts = style.count(style.packages()[package]).amounts()
    above = {habit: amount for habit, amount in amounts.items() if amount > GOALS[habit]}
    assert not above, f"`python -m tests.style app/callgate/{package}` lists them; at most {GOALS}"


@pytest.mark.parametrize(
    ("habit", "code"),
    [
        ("tuple assignment", "a, b = 1, 2"),
        ("bare name", "found = 1"),
        ("bare name", "def f(given): ..."),
        ("conditional expression", "a = 1 if b else 2"),
        ("chained conditional", "a = 1 if b else 2 if c else 3"),
        ("and as a value", "a = b and c"),
        ("and as a value", "f(a=b and c.d)"),
        ("index by truth", "a[b > c]"),
        ("index by truth", "a[not b]"),
        ("positional private field", "class A(msgspec.Struct):\n    _b: int"),
        ("subclass of text", "class A(str): ..."),
        ("context variable", 'A = ContextVar("request")'),
        ("property that works", "@property\ndef a(self):\n    return [b for b in self.c]"),
        ("property that works", "@property\ndef a(self):\n    return decode(self.b)"),
    ],
)
def test_a_habit_is_found(habit: str, code: str) -> None:
    assert habit in [name for _, name in style.habits_in(ast.walk(ast.parse(code)), frozenset({"Struct"}))]


@pytest.mark.parametrize(
    "code",
    [
        "a, b = f()",
        "if a and b: ...",
        "a = b and not c",
        "a = b and c > 1",
        "a[0]",
        "class A(msgspec.Struct, kw_only=True):\n    _b: int",
        "class A(msgspec.Struct):\n    b: int",
        "class A(str, Enum): ...",
        'A = ContextVar("trace")',
        "@property\ndef a(self):\n    return self._b",
        "@property\ndef a(self):\n    return any(b.c for b in self.d)",
        "def a(self):\n    return decode(self.b)",
    ],
)
def test_what_reads_well_is_left_alone(code: str) -> None:
    assert list(style.habits_in(ast.walk(ast.parse(code)), frozenset({"Struct"}))) == []


def test_what_comes_from_a_struct_is_one(tmp_path) -> None:
    file = tmp_path / "a.py"
    file.write_text("class A(msgspec.Struct): ...\nclass B(A): ...\nclass C: ...")
    assert style.structs_of((file,)) == {"Struct", "A", "B"}


def test_a_helper_of_the_tests_has_a_name_that_says_what_it_does() -> None:
    counts: Counter[str] = Counter()
    for path in (style.ROOT / "tests").rglob("*.py"):
        if BY_PROTOCOL.isdisjoint(path.parts):
            helpers = re.findall(r"^(?:async )?def (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
            counts.update(name for name in set(helpers) if not name.startswith("test_") and name != "main")
    often = {name: count for name, count in counts.items() if count > MOST_HELPERS}
    assert not often, "give them names of their own, or one home in tests/harness"
