"""Each name of litellm's insides that is used is there, takes what it is given, and stands in the seam."""

import ast
import importlib
import inspect
from importlib.metadata import version
from pathlib import Path

import pytest

from callgate.models import litellm_model, litellm_seam
from callgate.models.litellm_seam import INSIDES, PUBLIC, SWITCHES, Inside
from tests.harness.sources import trees_with

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of litellm's modules, when they are imported

PACKAGE = Path(litellm_seam.__file__).parents[1]
VERSION = version("litellm")


@pytest.fixture(autouse=True)
def _loaded() -> None:
    litellm_model.loaded_at_once()


@pytest.mark.parametrize(("name", "inside"), INSIDES, ids=[name for name, _ in INSIDES])
def test_a_name_of_litellms_insides_is_there_and_takes_what_it_is_given(name: str, inside: Inside) -> None:
    where = f"litellm {VERSION} broke litellm_seam.{name}: {inside.module}.{inside.path}"
    try:
        value = inside.get()
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{where} is gone ({error})")
    for attribute in inside.attributes:
        assert hasattr(value, attribute) or attribute in fields_of(value), f"{where} has no {attribute}"
    if inside.arguments:
        parameters = inspect.signature(value).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            missing = set(inside.arguments) - {parameter.name for parameter in parameters}
            assert not missing, f"{where} no longer takes {', '.join(sorted(missing))}"
        needed = {
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        } - {"self", "args", "kwargs"}
        assert needed <= {*inside.arguments}, f"{where} needs {', '.join(sorted(needed - {*inside.arguments}))}"


def fields_of(value: object) -> set[str]:
    """Names that a class gives its instances when they are made."""
    return set(getattr(value, "__annotations__", {}))


def test_the_broken_name_and_the_version_are_named() -> None:
    with pytest.raises(
        pytest.fail.Exception, match=rf"litellm {VERSION} broke litellm_seam.GONE: litellm.utils.no_such"
    ):
        test_a_name_of_litellms_insides_is_there_and_takes_what_it_is_given("GONE", Inside("litellm.utils", "no_such"))


def test_the_switches_of_the_process_are_there_and_set() -> None:
    litellm = importlib.import_module("litellm")
    for name, value in SWITCHES.items():
        assert hasattr(litellm, name), f"litellm {VERSION} has no switch {name}"
        assert getattr(litellm, name) == value


def test_what_is_used_as_documented_is_there() -> None:
    litellm = importlib.import_module("litellm")
    assert [name for name in sorted(PUBLIC) if not hasattr(litellm, name)] == [], f"litellm {VERSION}"


def test_no_other_module_imports_litellm_or_uses_more_of_it_than_is_documented() -> None:
    strange = []
    for file, tree in trees_with(["litellm", "_library"]):
        if file.stem == "litellm_seam":
            continue
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "litellm"]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "litellm":
                names = [str(node.module)]
            elif isinstance(node, ast.Attribute) and is_litellm(node.value) and node.attr not in PUBLIC:
                names = [node.attr]
            strange += [f"{file.relative_to(PACKAGE)}:{node.lineno}: {name}" for name in names]  # type: ignore[attr-defined]
    assert strange == []


def is_litellm(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in {"litellm", "_library"}
    return isinstance(node, ast.Attribute) and node.attr == "_litellm"
