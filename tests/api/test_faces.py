"""What differs between the APIs is attributes of a face: no other code asks for a face by its name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import callgate
from callgate.application import create_app
from callgate.chat.face import ChatFace
from callgate.messages.face import MessagesFace
from callgate.responses.face import ResponsesFace
from tests.harness.configs import make_config
from tests.harness.sources import trees_with
from tests.snapshots.wire import PATHS

SOURCE = Path(callgate.__file__).parent
FACES = (ChatFace, MessagesFace, ResponsesFace)
NAMES = frozenset(face.route for face in FACES)
HOLDERS = ("route", "face", "api")
"""Parts of the names of what may have a face's name."""


def comparisons_with_a_face(tree: ast.AST) -> Iterator[ast.Compare]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        texts = {side.value for side in sides if isinstance(side, ast.Constant)}
        holders = [ast.unparse(side).rpartition(".")[2] for side in sides if not isinstance(side, ast.Constant)]
        if texts & NAMES and any(word in holder for holder in holders for word in HOLDERS):
            yield node


def test_every_face_is_known_here_and_its_bodies_are_in_the_snapshots() -> None:
    packages = {file.parent.name for file in SOURCE.glob("*/face.py")}
    assert {face.route for face in FACES} == packages
    assert PATHS.keys() == packages


def test_every_face_is_served_and_described() -> None:
    described = create_app(make_config("http://127.0.0.1:1")).openapi()["paths"]
    assert {path for path in PATHS.values() if "post" not in described.get(path, ())} == set()


def test_no_face_is_asked_for_by_its_name() -> None:
    folders = {face.__module__.split(".")[1:-1][-1] for face in FACES} - {"api"}
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees_with([f'"{name}"' for name in NAMES])
        if folders.isdisjoint(path.relative_to(SOURCE).parts)
        for node in comparisons_with_a_face(tree)
    ]
    assert not found


def test_the_search_finds_such_a_comparison() -> None:
    assert list(comparisons_with_a_face(ast.parse('context.route != "responses"')))
    assert not list(comparisons_with_a_face(ast.parse('name == "messages"')))
