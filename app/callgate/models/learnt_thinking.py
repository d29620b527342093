"""Remembers which deployments open the thinking in their template, in a file where there is a `data_dir`.

A deployment is known by a hash of its name, its model and its address. What is lost is learnt again, so that a file that cannot be
read or written is a warning and nothing else.
"""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader

MOST: Final = 4096
"""Deployments that are remembered, the latest ones. Wildcards let clients choose names."""
FILE: Final = Door(name="file of learnt thinking", bytes=1024 * 1024)
_read = json_reader(dict[str, bool])

log = structlog.get_logger("callgate.models")


class ThinkingNotes:
    """What was learnt of all deployments, also before a reload or a restart."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._opens: dict[str, bool] = {}
        self._failure = ""
        if file is not None:
            self._opens = self._read_file(file)

    def of(self, deployment: Sequence[str]) -> "DeploymentThinking":
        text = "\n".join(deployment).encode("utf-8", "replace")
        return DeploymentThinking(self, hashlib.sha256(text).hexdigest()[:24])

    def opens(self, key: str) -> bool | None:
        return self._opens.get(key)

    def learn(self, key: str, *, opens: bool | None) -> None:
        if self._opens.get(key) == opens:
            return
        if self._file is not None:
            # Another worker may have learnt something meanwhile.
            self._opens |= self._read_file(self._file)
        self._opens.pop(key, None)
        if opens is not None:
            self._opens[key] = opens
        while len(self._opens) > MOST:
            del self._opens[next(iter(self._opens))]
        if self._file is not None:
            self._write(self._file)

    def _read_file(self, file: Path) -> dict[str, bool]:
        try:
            return _read(Untrusted(file.read_bytes(), FILE).open())
        except (FileNotFoundError, NotADirectoryError):  # an invalid folder is reported elsewhere
            return {}
        except (OSError, *READ_ERRORS) as error:
            self._tell(file, error)
            return {}

    def _write(self, file: Path) -> None:
        """Write the file atomically, beside other workers that may write it too."""
        fresh = file.with_suffix(f".{os.getpid()}.new")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as writing:
                writing.write(msgspec.json.encode(self._opens))
            fresh.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            self._tell(file, error)

    def _tell(self, file: Path, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if self._failure != reason:
            self._failure = reason
            log.warning("learnt_thinking_unusable", file=str(file), error=reason, effect="learnt again after a restart")


class DeploymentThinking:
    """What was learnt of one deployment."""

    def __init__(self, notes: ThinkingNotes, key: str) -> None:
        self._notes = notes
        self._key = key

    def opens(self) -> bool | None:
        return self._notes.opens(self._key)

    def learn(self, *, opens: bool | None) -> None:
        self._notes.learn(self._key, opens=opens)
