"""The page of the environment names every variable that sets something of ours."""

import ast
import re

from tests.docs.test_pages import DOCS
from tests.harness.sources import trees_with


def test_every_variable_of_ours_is_explained():
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    nodes = [node for _, tree in trees_with(["CALLGATE_"]) for node in ast.walk(tree)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    used = {text for text in texts if re.fullmatch(r"CALLGATE_[A-Z_]+", text)}
    assert used == set(re.findall(r"CALLGATE_[A-Z_]+", page))
