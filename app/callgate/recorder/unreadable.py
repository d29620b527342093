"""Says in words why recorded runs cannot be read."""

import contextlib
import zlib
from collections.abc import Iterator

import msgspec

from callgate.recorder.store import FILE, StoreUnusable


@contextlib.contextmanager
def unreadable_in_words() -> Iterator[None]:
    """Raise `StoreUnusable` for a run that is damaged or written by a later version, and for a file that may not be opened."""
    try:
        yield
    except (msgspec.DecodeError, zlib.error, UnicodeDecodeError) as error:
        why = f"a run in {FILE} is damaged, or was written by another version of Callgate ({error})"
        raise StoreUnusable(why) from error
    except OSError as error:
        raise StoreUnusable(str(error)) from error
