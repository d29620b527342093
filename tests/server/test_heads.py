"""The headers of answers, as lines."""

import pytest

from callgate.server.heads import CONTROLS, MAX_SHAPES, _shapes, header_lines


def test_names_are_lower_case_and_values_are_as_they_were() -> None:
    lines = header_lines([(b"X-One", b"A b\tc"), (b"x-none", b""), (b"x-high", "é".encode("latin-1"))])
    assert lines == (b"\r\nx-one: A b\tc\r\nx-none: \r\nx-high: \xe9", -1, False)


def test_a_length_and_an_end_are_found_and_a_coding_is_left_out() -> None:
    given = [(b"Content-Length", b"12"), (b"Connection", b"x, Close"), (b"Transfer-Encoding", b"chunked")]
    assert header_lines(given) == (b"\r\ncontent-length: 12\r\nconnection: x, Close", 12, True)


@pytest.mark.parametrize("control", [bytes((control,)) for control in CONTROLS])
def test_no_value_can_hold_a_control_character(control: bytes) -> None:
    for value in (control, b"a" + control, control + b"x: y", b"a" + control * 2 + b"b"):
        with pytest.raises(RuntimeError, match="value"):
            header_lines([(b"x", value), (b"y", b"fine")])


@pytest.mark.parametrize(
    "name", [b"", b" x", b"x ", b"a b", b"a:b", b"x\r\n", b"\xe9", b"a\x00", b"(x)", b"x\r\ny: z\r\nw"]
)
def test_no_name_can_hold_what_is_not_of_a_name(name: bytes) -> None:
    with pytest.raises(RuntimeError, match="name"):
        header_lines([(name, b"x")])


@pytest.mark.parametrize("values", [[b"-1"], [b"+5"], [b"1_0"], [b" 5"], [b""], [b"5", b"6"], [b"x"]])
def test_a_length_is_a_number_and_there_is_one(values: list[bytes]) -> None:
    with pytest.raises(RuntimeError, match="Length"):
        header_lines([(b"content-length", value) for value in values])


def test_a_percent_sign_in_a_name_or_a_value_is_itself() -> None:
    assert header_lines([(b"x-%b", b"%d"), (b"%%", b"%%")]) == (b"\r\nx-%b: %d\r\n%%: %%", -1, False)


def test_what_is_remembered_of_one_answer_holds_for_the_next() -> None:
    for length in (b"5", b"6"):
        given = [(b"transfer-encoding", length), (b"content-length", length), (b"x", length)]
        assert header_lines(given) == (b"\r\ncontent-length: %b\r\nx: %b" % (length, length), int(length), False)
    assert header_lines([]) == (b"", -1, False)


def test_names_that_are_made_up_are_not_remembered_for_ever() -> None:
    for number in range(2 * MAX_SHAPES):
        assert header_lines([(b"x-%d" % number, b"")])[0] == b"\r\nx-%d: " % number
    assert len(_shapes) <= MAX_SHAPES
