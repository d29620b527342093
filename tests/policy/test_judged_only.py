"""Lanes take nothing of a request but what was judged: only the judge makes it, and nobody decides again."""

import ast
from collections import defaultdict

from tests.harness.process import ROOT
from tests.harness.sources import trees_with

PACKAGE = ROOT / "app/callgate"
MAKERS = {
    "JudgedFields": {"conversation/ports.py", "policy/litellm_settings.py"},
    "without_settings": {
        "api/judged_request.py",
        "policy/judge.py",
        # Questions of our own, and a child process that is handed what was judged.
        "models/inspection.py",
        "models/translated/wording_process.py",
        "text_calls/families.py",
    },
    "JudgedRequest": {"api/judged_request.py"},
    "judged_request": {"api/endpoint.py", "messages/counting.py", "responses/input_tokens.py"},
    "judge_chat_fast": {"api/judged_request.py"},
    "judge_named": {"api/judged_request.py", "models/routes.py", "responses/judged.py"},
    "Passthrough": {"api/judged_request.py"},
    "ModelRequest": {
        "api/conversation.py",
        "api/judged_request.py",
        "conversation/loop.py",
        "models/inspection.py",
        "models/translated/wording_process.py",
        "text_calls/families.py",
    },
}
"""The modules that call each of these."""
TABLES = ("SELECTORS", "SWITCHES", "SWITCHES_IN_TOOLS", "DENIED", "OPERATORS_BLOCKS", "CALLED_BY_PROVIDERS")


def test_what_lanes_take_is_made_where_it_is_judged() -> None:
    callers: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees_with(MAKERS):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                callers[node.func.id].add(file.relative_to(PACKAGE).as_posix())
    assert callers == MAKERS


def test_the_tables_of_what_may_be_named_are_read_by_the_judge_alone() -> None:
    readers = {
        file.relative_to(PACKAGE).as_posix()
        for file, tree in trees_with(["callgate.policy"])
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        if (node.module or "").startswith("callgate.policy")
        if any(name.name in TABLES for name in node.names)
    }
    assert readers == {"policy/judge.py"}
