"""A long read of a provider is cut behind events, and nothing of it is lost."""

from hypothesis import given
from hypothesis import strategies as st

from callgate.models.direct.model import PIECE, pieces_of


@given(st.lists(st.integers(0, 3 * PIECE).map(lambda size: b"a" * size + b"\n\n"), max_size=4).map(b"".join))
def test_a_read_is_cut_into_pieces_and_nothing_is_lost(data: bytes) -> None:
    pieces = list(pieces_of(data))
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= PIECE for piece in pieces)
