import pytest

from callgate.tools.docstrings import read

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
    doc = read(text)
    assert doc.description == "Find a train.\n\nOnly today's."
    assert doc.parameters["start"] == "where from, by name"
    assert doc.parameters["to"] == "where to: the station"


@pytest.mark.parametrize("text", [None, "", "   "])
def test_nothing_says_nothing(text):
    assert read(text).description == ""


def test_a_text_without_sections_is_all_description():
    text = "Note: this is a sentence.\n\nArgs are not described: here."
    assert read(text).description == text
    assert read(text).parameters == {}
