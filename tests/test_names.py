"""Names of classes: one word for one thing."""

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "app" / "callgate"


def test_a_class_name_stands_in_one_module_only():
    modules: dict[str, set[str]] = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^ *class (\w+)[:(\[]", file.read_text(), re.MULTILINE):
            modules[name].add(str(file.relative_to(PACKAGE)))
    assert {name: sorted(found) for name, found in modules.items() if len(found) > 1} == {}
