"""Translates errors in reading recorded runs."""

import contextlib
import zlib
from collections.abc import Iterator

import msgspec

from callgate.recorder.store import FILE, StoreUnusable


@contextlib.contextmanager
def translate_read_errors() -> Iterator[None]:
    """Raise `StoreUnusable` for a run that is damaged or of another version, and for a file that cannot be opened."""
    try:
        yield
    except (msgspec.DecodeError, zlib.error, UnicodeDecodeError) as error:
        why = f"a run in {FILE} is damaged, or was written by another version of Callgate ({error})"
        raise StoreUnusable(why) from error
    except OSError as error:
        raise StoreUnusable(str(error)) from error
