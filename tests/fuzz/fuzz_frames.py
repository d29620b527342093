"""Frames of a WebSocket: messages and control frames, or a reason to end; the same however they are cut, and nothing held beyond
the limit."""

from callgate.responses.frames import FrameError, FrameReader

MOST = 2000


def run(data: bytes) -> None:
    whole = read([data])
    half = len(data) // 2
    assert read([data[:half], data[half:]]) == whole
    assert read([data[at : at + 1] for at in range(len(data))]) == whole


def read(pieces: list[bytes]) -> tuple[list[tuple[int, bytes]], int]:
    """What came, and why it ended; 0 where it may go on."""
    reader, found = FrameReader(MOST), []
    try:
        for piece in pieces:
            for kind, payload in reader.feed(piece):
                assert len(payload) <= MOST
                found.append((kind, payload))
            # A message that is not whole, a frame that is not, and what came behind them in this piece.
            assert reader.held <= 2 * MOST + 14 + len(piece)
    except FrameError as error:
        return found, error.code
    return found, 0
