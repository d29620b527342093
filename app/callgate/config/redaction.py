"""Masks secrets in all that leaves the process: logs, answers, terminals, traces, and the details of errors.

A secret is recognized by its registered value, by the name of its field (`api_key`, `Authorization`), or by its format
(`sk-…`, `Bearer …`).
"""

import base64
import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final
from urllib.parse import quote

from callgate.config.secret_mask import Needles, needles_for
from callgate.config.secret_names import is_ordinary, means_secret

MASK: Final = "***"

MIN_SECRET_LENGTH: Final = 8
"""Shorter values are not masked, because they occur in ordinary text."""

_MIN_LINE_LENGTH: Final = 16
"""The length from which single lines of a multi-line secret are masked, because tracebacks indent them."""

_MAX_DEPTH: Final = 12
"""Deeper values are replaced by their repr, which also handles recursive values."""

_PATTERNS: Final = (
    (
        ("-----begin",),
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        MASK,
    ),
    (("k-", "g-", "i-"), re.compile(r"(?<![A-Za-z0-9])(?:sk|pk|rk|cg|gsk|xai)-[A-Za-z0-9_-]{12,}"), MASK),
    (
        ("ghp_", "gho_", "ghu_", "ghr_", "ghs_", "pat_", "pat-", "hf_", "xox"),
        re.compile(r"(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|glpat-|hf_|xox[a-z]-)[A-Za-z0-9_-]{16,}"),
        MASK,
    ),
    (
        ("akia", "asia", "aiza"),
        re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])|AIza[A-Za-z0-9_-]{30,}"),
        MASK,
    ),
    (("eyj",), re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"), MASK),
    (
        ("bearer", "basic"),
        re.compile(r"\b(bearer|basic)(\s+|%20)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
        rf"\1\2{MASK}",
    ),
    (("://",), re.compile(r"(://[^/\s:@]*:)[^/\s@]+@"), rf"\1{MASK}@"),
    (
        ("key", "token", "secret", "passw", "authorization"),
        re.compile(
            r"(?<![A-Za-z0-9])((?:x-)?api[_-]?key|(?:access|auth|refresh|id)[_-]?token|token|secret|password|passwd|authorization)"
            r"([\"']?\s{0,4}[:=]\s{0,4}[\"']?)(?!bearer\b|basic\b)[^\s\"',;&}\])]{8,}",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}",
    ),
    (("key",), re.compile(r"([?&]key=)[^\s\"'&]{8,}", re.IGNORECASE), rf"\1{MASK}"),
)
"""Hints and patterns of secrets: a text without the hints, in lower case, cannot match the pattern. Checking the hints one by one
takes an eightieth of the time of one pattern with alternatives."""


_HINTS: Final = tuple(dict.fromkeys(hint for hints, _, _ in _PATTERNS for hint in hints))

_MIN_MATCH: Final = len("://:x@")

_LONG: Final = 1024

_SLICE: Final = 24 * 1024
"""Characters that are searched at once, in about a millisecond, because a search holds the interpreter lock."""
_OVERLAP: Final = 8 * 1024
"""Characters of a slice that are searched again with the next one, for matches across the boundary."""

_SHORT_NUMBER: Final = 10 ** (MIN_SECRET_LENGTH - 2)
"""Smaller whole numbers are shorter than any secret."""

_OUR_IDS: Final = re.compile(r"(?:req|run|call|chatcmpl)[_-][0-9a-f]{24}")
"""Our own ids, which are no secrets, and different on every line."""

_REMEMBERED: Final = 2048
_REMEMBERED_LENGTH: Final = 64
"""The bounds of the cache of harmless texts, which recur in log lines: paths, models, tools, callers."""


class Redactor:
    """Masks the secrets of the running config. Adding a secret is thread-safe."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: frozenset[str] = frozenset()
        self._in_answers: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self.needles: Needles | None = None
        """Finds the registered secrets in bytes that are written; None without any."""
        self.lent: Redactor | None = None
        """Masks the secrets of running requests; None without any."""
        self.harmless: set[Any] = set()
        """The cached values without secrets."""
        self.add(*secrets)

    def add(self, *values: str) -> None:
        """Mask these values from now on, in all encodings."""
        forms = {form for value in values for form in _forms(value)}
        if forms <= self._known:
            return
        self._known |= forms
        self._in_answers |= {form for value in values if not is_ordinary(value) for form in _forms(value)}
        # The longest first, so that a secret which begins with another is masked completely.
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._known, key=len, reverse=True))))
        self.needles = needles_for(tuple(sorted(form.encode(errors="surrogatepass") for form in self._in_answers)))
        self.harmless = set()

    def lend(self, values: AbstractSet[str]) -> None:
        """Mask these values of running requests, and none that were lent before."""
        self.lent = Redactor(values) if values else None
        self.harmless = set()

    def data(self, data: bytes) -> bytes:
        """Mask the registered secrets in bytes, whose length stays the same."""
        if self.lent is not None:
            data = self.lent.data(data)
        if self.needles is None:
            return data
        return self.needles.starred(data)

    def remember(self, value: float | None) -> None:
        """Cache a harmless value."""
        harmless = self.harmless
        if len(harmless) >= _REMEMBERED:
            harmless.clear()
        harmless.add(value)

    def registered(self, text: str) -> str:
        """Mask only the registered secrets in a text, and not what looks like one: for people who are told a new key."""
        if self.lent is not None:
            text = self.lent.registered(text)
        if self._pattern is None or not any(form in text for form in self._known):
            return text
        return _substituted(self._pattern, MASK, text)

    def text(self, text: str) -> str:
        """Mask all secrets in a text."""
        harmless = self.harmless
        if text in harmless or _OUR_IDS.fullmatch(text):
            return text
        masked = self._masked(text) if len(text) >= _MIN_MATCH else text
        if masked == text and len(text) <= _REMEMBERED_LENGTH:
            if len(harmless) >= _REMEMBERED:
                harmless.clear()
            # Into the set from before the search, because a secret may have been added since, with a new set.
            harmless.add(text)
        return masked

    def _masked(self, text: str) -> str:
        if self.lent is not None:
            text = self.lent.registered(text)
        # In a long text, searching the secrets one by one takes a tenth of the time of one pattern.
        if (
            self._pattern is not None
            and len(text) >= MIN_SECRET_LENGTH
            and (len(text) < _LONG or any(form in text for form in self._known))
        ):
            text = _substituted(self._pattern, MASK, text)
        folded = _folded(text)
        if not any(map(folded.__contains__, _HINTS)):
            return text
        for hints, pattern, replacement in _PATTERNS:
            if any(hint in folded for hint in hints):
                text = _substituted(pattern, replacement, text)
        return text

    def value(self, value: Any, name: str = "") -> Any:
        """Convert a value to plain data with all secrets masked; `name` is that of its field."""
        if type(value) is str and value in self.harmless and not (name and means_secret(name)):
            return value
        return self._clean(value, name, 0)

    def _clean(self, value: Any, name: str, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if name and means_secret(name):
            return MASK
        if isinstance(value, str):
            return self.text(str(value))
        if isinstance(value, int) and -_SHORT_NUMBER < value < _SHORT_NUMBER:
            return value
        if isinstance(value, int | float):
            shown = str(value)
            masked = self.text(shown)
            if masked == shown:
                return value
            return masked
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode(errors="backslashreplace"))
        if depth < _MAX_DEPTH:
            if isinstance(value, Mapping):
                return {self.text(str(key)): self._clean(inner, str(key), depth + 1) for key, inner in value.items()}
            if isinstance(value, list | tuple | AbstractSet):
                return [self._clean(inner, name, depth + 1) for inner in value]
        return self.text(repr(value))


current = Redactor()
"""The masker of everything that this process writes: read it as `redaction.current`, because `use` replaces it."""


def use(redactor: Redactor) -> None:
    """Have another masker for everything that this process writes."""
    global current  # noqa: PLW0603 - a process has one, which its logs, answers and commands share
    current = redactor
    current.lend(_lent.keys())


_lent: Counter[str] = Counter()
"""The secrets of running requests, and of how many each is."""


@contextlib.contextmanager
def lent(values: Iterable[str]) -> Iterator[None]:
    """Mask the secrets of a request in everything that this process writes meanwhile."""
    secrets = list(values)
    _lent.update(secrets)
    current.lend(_lent.keys())
    try:
        yield
    finally:
        _lent.subtract(secrets)
        for value in secrets:
            if not _lent[value]:
                del _lent[value]
        current.lend(_lent.keys())


def _substituted(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    """Like `pattern.sub`; a long text is processed in slices, between which other threads run."""
    if len(text) <= _SLICE:
        return pattern.sub(replacement, text)
    parts: list[str] = []
    copied = 0
    """Up to where the text is in the parts."""
    at = 0
    while at < len(text):
        ends = min(at + _SLICE, len(text))
        match = pattern.search(text, at, ends)
        while match is not None and match.end() == ends < len(text):  # the match may extend beyond the slice
            whole = pattern.match(text, match.start())
            if whole is not None:
                match = whole
                break
            match = pattern.search(text, match.start() + 1, ends)
        if match is not None:
            parts += (text[copied : match.start()], match.expand(replacement))
            copied = match.end()
            at = copied
            continue
        at = ends
        if ends < len(text):
            at -= _OVERLAP
        time.sleep(0)
    return "".join((*parts, text[copied:]))


def _folded(text: str) -> str:
    return text.casefold().replace("ı", "i")  # patterns fold this letter, `casefold` does not


def _forms(secret: str) -> set[str]:
    """Return the encodings of a secret: plain, in JSON as several languages write it, in repr, URLs and Basic authorization."""
    if len(secret) < MIN_SECRET_LENGTH:
        return set()
    encoded = secret.encode(errors="surrogatepass")
    forms = {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        json.dumps(secret)[1:-1].replace("/", r"\/"),
        json.dumps(secret)[1:-1].replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026"),
        repr(secret)[1:-1],
        repr(encoded)[2:-1],
        quote(encoded, safe=""),
        quote(encoded),
        base64.b64encode(encoded).decode(),
    }
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        forms.update(line for line in lines if len(line) >= _MIN_LINE_LENGTH)
    return forms
