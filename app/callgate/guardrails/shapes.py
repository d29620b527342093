"""The shapes that `patterns` knows: cards, accounts, addresses, keys. Each is a bounded expression, and a checksum where there is one.

No expression has a repetition without a limit, or two in a row that take the same character, so that a text costs at most its length
times `WINDOW`. What is longer than that, such as a token, is known by its beginning and ends where its characters do.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

WINDOW: Final = 256
"""Characters within which a shape is known."""
_BETWEEN = "[ \u00a0\u00ad\u2007\u2009\u200b\u2010-\u2015\u202f\u2060\u2212\ufeff-]"
"""What groups of digits are written with: spaces that hold a line together, hyphens of typesetters and models, what is not seen."""
LONGEST: Final = 65_536
"""Characters of a match at most, with what follows its beginning."""

Accepted = Callable[[str], int]
"""Returns how many characters of a match count; 0 where it is none."""


def _all_of(text: str) -> int:
    return len(text)


class ShapeTail(msgspec.Struct, frozen=True):
    """How far a match goes on behind what it is known by."""

    stop: re.Pattern[str]
    """Where it ends."""
    overlap: int = 0
    """The characters before the end of a text that may be the beginning of the stop."""
    is_included: bool = False
    """Whether what ends it belongs to it."""


class Match(Protocol):
    """What an expression matches."""

    def start(self) -> int: ...

    def group(self) -> str: ...


class Expression(Protocol):
    """What is looked for, from a place on."""

    def search(self, string: str, pos: int, /) -> Match | None: ...


class TextShape(msgspec.Struct, frozen=True):
    """Something that is looked for."""

    name: str
    head: Expression
    width: int
    """The most characters that its head matches, and looks ahead."""
    needs: str = ""
    """A character without which it is nowhere in a text."""
    accept: Accepted = _all_of
    tail: ShapeTail | None = None


_CARD_LENGTHS: Final = (
    (("34", "37"), (15,)),
    (("30", "36", "38", "39"), (14, 16, 19)),
    (("35",), (16, 19)),
    (("4",), (13, 16, 19)),
    (("2", "5"), (16,)),
    (("6",), (16, 17, 18, 19)),
)
"""How many digits the cards of an issuer have, by how they begin."""


def _luhn(text: str) -> int:
    """Accept the longest beginning that is the number of a card."""
    digits: list[int] = []
    ends: list[int] = []
    for at, character in enumerate(text):
        if character.isdecimal():
            digits.append(int(character))
            ends.append(at + 1)
    start = "".join(map(str, digits[:2]))
    lengths = next((lengths for starts, lengths in _CARD_LENGTHS if start.startswith(starts)), ())
    for count in range(len(digits), 12, -1):
        end = ends[count - 1]
        if end < len(text) and text[end].isdecimal():
            continue
        if count in lengths and _luhn_sum(digits[:count]) % 10 == 0:
            return end
    return 0


def _luhn_sum(digits: list[int]) -> int:
    doubled = (digit * 2 for digit in digits[-2::-2])
    return sum(digits[-1::-2]) + sum(double - 9 if double > 9 else double for double in doubled)


_IBAN_LENGTHS: Final[Mapping[str, int]] = {
    code: int(length)
    for code, length in (
        entry.split("=")
        for entry in (
            "AD=24 AE=23 AL=28 AT=20 AZ=28 BA=20 BE=16 BG=22 BH=22 BI=27 BR=29 BY=28 CH=21 CR=22 CY=28 CZ=24 DE=22 DJ=27 DK=18 DO=28"
            " EE=20 EG=29 ES=24 FI=18 FK=18 FO=18 FR=27 GB=22 GE=22 GI=23 GL=18 GR=27 GT=28 HN=28 HR=21 HU=28 IE=22 IL=23 IQ=23 IS=26"
            " IT=27 JO=30 KW=30 KZ=20 LB=28 LC=32 LI=21 LT=20 LU=20 LV=21 LY=25 MC=27 MD=24 ME=22 MK=19 MN=20 MR=27 MT=31 MU=30 NI=28"
            " NL=18 NO=15 OM=23 PK=24 PL=28 PS=29 PT=25 QA=29 RO=24 RS=22 RU=33 SA=24 SC=31 SD=18 SE=24 SI=19 SK=24 SM=27 SO=23 ST=25"
            " SV=28 TL=23 TN=24 TR=26 UA=29 VA=22 VG=24 XK=20 YE=30"
        ).split()
    )
}


def _iban(text: str) -> int:
    """Accept an account whose length is its country's and whose check digits are right."""
    length = _IBAN_LENGTHS.get(text[:2].upper(), 0)
    letters: list[str] = []
    for at, character in enumerate(text):
        if not character.isalnum():
            continue
        letters.append(character.upper())
        if len(letters) == length:
            if text[at + 1 : at + 2].isalnum():
                return 0
            turned = "".join(letters[4:] + letters[:4])
            if int("".join(str(int(letter, 36)) for letter in turned)) % 97 == 1:
                return at + 1
            return 0
    return 0


def _ssn(text: str) -> int:
    """Accept a number that the Social Security Administration gives: not 000, 666 or 9xx, no group of zeros."""
    area = text[:3]
    group = text[4:6]
    serial = text[7:11]
    if area in ("000", "666") or area[0] == "9" or group == "00" or serial == "0000":
        return 0
    return len(text)


def _phone(text: str) -> int:
    """Accept a number with as many digits as E.164 has, that says its country."""
    digits = sum(character.isdecimal() for character in text)
    if 8 <= digits <= 15:
        return len(text)
    return 0


def _while(characters: str) -> ShapeTail:
    return ShapeTail(re.compile(f"[^{characters}]"))


_TOKEN = _while("A-Za-z0-9_-")
_DOTTED = _while("A-Za-z0-9_.=-")
_APART = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf]))"
"""Not within a word. The letter of an escape in JSON is none: results are mostly JSON."""


def _key(name: str, expression: str, width: int, needs: str, tail: ShapeTail | None = None) -> TextShape:
    return TextShape(name, re.compile(_APART + expression), width, needs, tail=tail)


SHAPES: Final[Mapping[str, tuple[TextShape, ...]]] = {
    "private_keys": (
        TextShape(
            "private_keys",
            re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
            100,
            "-",
            tail=ShapeTail(
                re.compile(r"-----END (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"), 100, is_included=True
            ),
        ),
    ),
    "jwts": (_key("jwts", r"eyJ[A-Za-z0-9_-]{8,180}\.eyJ[A-Za-z0-9_-]{8}", 206, ".", _DOTTED),),
    "cloud_keys": (
        _key("cloud_keys", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Z0-9])", 21, "A"),
        _key("cloud_keys", r"AIza[A-Za-z0-9_-]{35}", 40, "A", _TOKEN),
        TextShape("cloud_keys", re.compile(r"AccountKey=[A-Za-z0-9+/]{40}"), 52, "=", tail=_while("A-Za-z0-9+/=")),
        _key("cloud_keys", r"dop_v1_[a-f0-9]{64}", 72, "_"),
    ),
    "tokens": (
        _key("tokens", r"gh[pousr]_[A-Za-z0-9]{36}", 41, "_", _TOKEN),
        _key("tokens", r"github_pat_[A-Za-z0-9_]{22}", 34, "_", _TOKEN),
        _key("tokens", r"glpat-[A-Za-z0-9_-]{20}", 27, "-", _TOKEN),
        _key("tokens", r"sk-(?:ant-|proj-|svcacct-|or-)?[A-Za-z0-9_-]{20}", 32, "-", _TOKEN),
        _key("tokens", r"xox[abeoprs]-[A-Za-z0-9-]{10}", 16, "-", _TOKEN),
        _key("tokens", r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16}", 25, "_", _TOKEN),
        _key("tokens", r"hf_[A-Za-z0-9]{30}", 34, "_", _TOKEN),
        _key("tokens", r"npm_[A-Za-z0-9]{36}", 41, "_", _TOKEN),
        _key("tokens", r"pypi-[A-Za-z0-9_-]{40}", 46, "-", _TOKEN),
        _key("tokens", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16}", 54, ".", _TOKEN),
        _key("tokens", r"cg-[A-Za-z0-9_-]{32}", 36, "-", _TOKEN),
    ),
    "emails": (
        TextShape(
            "emails",
            re.compile(
                r"(?<![\w.+%-])[\w.+%-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9-]|\.(?=[A-Za-z0-9])){0,80}\.[A-Za-z]{2,24}(?![A-Za-z0-9-])"
            ),
            175,
            "@",
        ),
    ),
    "ibans": (
        TextShape(
            "ibans", re.compile(_APART + rf"[A-Za-z]{{2}}\d{{2}}(?:{_BETWEEN}?[A-Za-z0-9]){{11,30}}"), 66, accept=_iban
        ),
    ),
    "us_ssns": (TextShape("us_ssns", re.compile(r"(?<![\d-])\d{3}([- ])\d{2}\1\d{4}(?![\d-])"), 12, accept=_ssn),),
    "cards": (TextShape("cards", re.compile(rf"(?<!\d)\d(?:{_BETWEEN}?\d){{12,18}}(?!\d)"), 38, accept=_luhn),),
    "phones": (
        TextShape("phones", re.compile(r"(?<![\w+])\+[1-9](?:[ ().-]{0,2}\d){7,14}(?!\d)"), 45, "+", accept=_phone),
        TextShape("phones", re.compile(r"(?<![\w+(-])\(\d{3}\) ?\d{3}[ -]\d{4}(?!\d)"), 16, "("),
        TextShape("phones", re.compile(r"(?<![\w+.-])[2-9]\d{2}([.-])[2-9]\d{2}\1\d{4}(?![\w-])"), 13),
    ),
}
"""By the names in the config. Where two match at one place the first counts."""

LABELS: Final[Mapping[str, str]] = {
    "private_keys": "PRIVATE_KEY",
    "jwts": "JWT",
    "cloud_keys": "CLOUD_KEY",
    "tokens": "TOKEN",
    "emails": "EMAIL",
    "ibans": "IBAN",
    "us_ssns": "SSN",
    "cards": "CARD",
    "phones": "PHONE",
}
"""What stands for each in a masked text, in brackets."""
