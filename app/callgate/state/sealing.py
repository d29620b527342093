"""Seals what a client keeps for this server: nobody else can read it, and what is opened was sealed here.

There is one key for all of it, made of a secret: the variable `CALLGATE_SECRET`, else a file in `data_dir`, else one of the process.
Several secrets may be given, with commas or one a line: the first seals, and each of them opens.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from callgate.config.load import SEALING_VARIABLE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FILE: Final = "secret"
LEAST_CHARACTERS: Final = 32
"""The shortest secret: a shorter one can be guessed by who has something that it sealed."""
MARK: Final = "cg2."
"""The prefix of what is sealed. `cg1.` were texts that were only packed."""
_KEY_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_OF_PROCESS: Final = secrets.token_hex()
"""The secret where there is no other; also that of workers, which are forked from this process."""

Source = Literal["environment", "data_dir", "process"]


class BadSecret(Exception):
    """Raised where a secret is there and cannot be used."""


class NotSealedHere(Exception):
    """Raised for a text that was not sealed here, for this purpose and this owner, or that was changed since."""


class _Key(msgspec.Struct, frozen=True):
    """The key that was made of one secret."""

    id: bytes
    cipher: "AESGCM"


class Sealer:
    """Seals and opens texts."""

    def __init__(self, secrets: Sequence[str], source: Source) -> None:
        """The first of the secrets seals."""
        self._secrets = tuple(secrets)
        self.source = source
        self._keys: tuple[_Key, ...] = ()

    def seal(self, purpose: str, owner: str, content: bytes) -> str:
        """Return a text that only this server can open, and only for the same purpose and owner."""
        key = self._known_keys()[0]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        closed = key.cipher.encrypt(nonce, content, _bound_to(purpose, owner))
        return MARK + base64.urlsafe_b64encode(key.id + nonce + closed).decode()

    def open(self, purpose: str, owner: str, text: str) -> bytes:
        """Return what was sealed. Raises `NotSealedHere`."""
        from cryptography.exceptions import InvalidTag

        if not text.startswith(MARK):
            raise NotSealedHere("not sealed by this server")
        try:
            sealed = base64.b64decode(text.removeprefix(MARK).encode(), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise NotSealedHere("damaged") from None
        head = _KEY_ID_BYTES + _NONCE_BYTES
        id = sealed[:_KEY_ID_BYTES]
        nonce = sealed[_KEY_ID_BYTES:head]
        closed = sealed[head:]
        key = next((key for key in self._known_keys() if key.id == id), None)
        if key is None:
            raise NotSealedHere("sealed with a secret that is not known here")
        try:
            return key.cipher.decrypt(nonce, closed, _bound_to(purpose, owner))
        except (InvalidTag, ValueError):  # ValueError: too short to hold anything
            raise NotSealedHere("forged, damaged or sealed for another key") from None

    def _known_keys(self) -> tuple[_Key, ...]:
        if not self._keys:
            self._keys = tuple(map(_key_of, self._secrets))
        return self._keys


def sealer_of(folder: Path | None, environ: Mapping[str, str] = os.environ) -> Sealer:
    """Return the sealer of this server. Makes the file in `folder`, the data folder, if it needs one. Raises `BadSecret`."""
    if secrets := _secrets_in_variable(environ):
        return Sealer(secrets, "environment")
    if folder is None:
        return Sealer([_OF_PROCESS], "process")
    path = folder / FILE
    try:
        if not path.exists():
            _make(path)
        return Sealer(_secrets_in_file(path), "data_dir")
    except OSError as error:
        raise BadSecret(f"{path} cannot be used: {error.strerror}") from None


def check_secret(folder: Path | None, environ: Mapping[str, str] = os.environ) -> None:
    """Raise `BadSecret` where the secret that is there cannot be used. Does not write."""
    if _secrets_in_variable(environ) or folder is None:
        return
    path = folder / FILE
    try:
        if os.path.lexists(path):
            _secrets_in_file(path)
    except OSError as error:
        raise BadSecret(f"{path} cannot be used: {error.strerror}") from None


def _secrets_in_variable(environ: Mapping[str, str]) -> list[str]:
    text = environ.get(SEALING_VARIABLE, "")
    if text.strip():
        return _read_secrets(text.split(","), f"the variable {SEALING_VARIABLE}")
    return []


def _secrets_in_file(path: Path) -> list[str]:
    if not path.is_file():
        raise BadSecret(f"{path} cannot be used: it is no file")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise BadSecret(f"{path} is no text") from None
    return _read_secrets(text.splitlines(), str(path))


def _read_secrets(lines: Sequence[str], where: str) -> list[str]:
    secrets = [line.strip() for line in lines if line.strip()]
    if not secrets:
        raise BadSecret(f"{where} holds no secret")
    if any(len(secret) < LEAST_CHARACTERS for secret in secrets):
        raise BadSecret(
            f"a secret in {where} has fewer than {LEAST_CHARACTERS} characters; `openssl rand -hex 32` makes one"
        )
    return secrets


def _make(path: Path) -> None:
    """Make the file in one step, so that all processes that share the folder read the same secret."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(f"{secrets.token_hex()}\n")
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(fresh)
    except FileExistsError:
        pass  # another process has made it
    except OSError:
        fresh.replace(path)  # a file system without links
    finally:
        fresh.unlink(missing_ok=True)


def _key_of(secret: str) -> _Key:
    # Imported for the first seal, because most servers never need it.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = hmac.digest(secret.encode(), b"callgate: the key that seals", hashlib.sha256)
    id = hmac.digest(secret.encode(), b"callgate: the id of that key", hashlib.sha256)[:_KEY_ID_BYTES]
    return _Key(id, AESGCM(key))


def _bound_to(purpose: str, owner: str) -> bytes:
    return f"{purpose}\0{owner}".encode(errors="surrogatepass")
