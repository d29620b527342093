import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.tools.kinds.python.function import read_docstring

GOOGLE = """Find a train.

    Only today's.

    Args:
        start (str): where from,
            by name
        to: where to: the station
        **options: more

    Returns:
        dict: the train

    Raises:
        start: not a parameter
    """
NUMPY = """Find a train.

    Only today's.

    Parameters
    ----------
    start : str
        where from,
        by name
    to
        where to: the station
    options

    Returns
    -------
    start : dict
        not a parameter
    """
SPHINX = """Find a train.

    Only today's.

    :param str start: where from,
        by name
    :param to: where to: the station
    :type to: str
    :returns: the train
    :raises start: not a parameter
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX])
def test_all_three_styles_are_read(text):
    description, explained = read_docstring(inspect.cleandoc(text))
    assert description == "Find a train.\n\nOnly today's."
    assert explained["start"] == "where from, by name"
    assert explained["to"] == "where to: the station"


def test_several_parameters_may_be_explained_at_once():
    _, explained = read_docstring("Add.\n\nParameters\n----------\na, b : int\n    What to add.\n")
    assert explained == {"a": "What to add.", "b": "What to add."}


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_docstring_describes_nothing(text):
    assert read_docstring(text) == ("", {})


def test_a_text_without_sections_is_all_description():
    text = "Note: this is a sentence.\n\nArgs are not described: here."
    assert read_docstring(text) == (text, {})


@given(st.text())
def test_whatever_an_author_wrote_is_read(text):
    read_docstring(text)


@given(
    st.lists(
        st.sampled_from(
            ["Args:", "  a: b", ":param a: b", "----", "Parameters", "", "x", ":", "Returns:", "\t", ":return"]
        )
    )
)
def test_whatever_looks_like_sections_is_read(lines):
    read_docstring("\n".join(lines))
