"""The page of the environment names every variable that sets something of ours."""

import ast
import re

from tests.docs.test_pages import DOCS, sources


def test_every_variable_of_ours_is_explained():
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    texts = {node.value for node in sources() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    used = {text for text in texts if re.fullmatch(r"CALLGATE_[A-Z_]+", text)}
    assert used == set(re.findall(r"CALLGATE_[A-Z_]+", page))
