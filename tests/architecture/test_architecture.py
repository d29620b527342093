"""`ARCHITECTURE.md` says what the tree is."""

import re

import pytest

from tests.architecture import PACKAGE, PAGE, ROOT, folders, page_as_it_should_be
from tests.architecture.picture import PICTURES, draw
from tests.walk import CASES, Visit, Walk


def test_the_tables_are_those_of_the_tree():
    assert PAGE.read_text("utf-8") == page_as_it_should_be(), "python -m tests.architecture writes them"


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_a_package_says_what_it_is_for_and_where_to_begin(folder):
    assert re.fullmatch(r"[A-Z`].{10,}\.", folder.purpose)
    assert folder.first or not [*folder.path.glob("[!_]*.py")]
    assert folder.first is None or (folder.path / f"{folder.first}.py").is_file()
    assert folder.page is None or (ROOT / folder.page).is_file()


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_of_a_walk_has_modules_that_there_are(name):
    assert name in CASES
    modules = re.findall(r'class="module"[^>]*>([^<]+?)(?: ×\d+)?<', PICTURES[name].read_text("utf-8"))
    assert len(modules) > 20
    assert {module for module in modules if not (PACKAGE / module).is_file()} == set(), (
        "python -m tests.architecture walks"
    )


def test_a_picture_has_a_row_for_each_module_in_the_order_of_the_walk():
    walk = Walk([Visit("api/a.py", ("f",)), Visit("http/b.py", ("g", "h")), Visit("api/a.py", ("i",))])
    picture = draw(walk)
    assert re.findall(r'class="module"[^>]*>([^<]+)<', picture) == ["api/a.py ×2", "http/b.py"]
    assert re.findall(r'class="function"[^>]*>([^<]+)<', picture) == ["f", "g"]
    assert "<title>2 modules, 2 crossings</title>" in picture
