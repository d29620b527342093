"""What `patterns` finds, wherever a text is cut, and what a text may cost."""

import random
import re
from re import _parser  # how wide an expression is

import pytest

from callgate.guardrails.hook import Blocked
from callgate.guardrails.linear import BadExpression, LinearExpression
from callgate.guardrails.patterns import Masking, PatternSearch, ShapeFound
from callgate.guardrails.scanner import Scanner
from callgate.guardrails.shapes import LABELS, SHAPES, WINDOW, TextShape
from callgate.guardrails.verdicts import Block, GuardEvent, Mask, Pass

pytestmark = pytest.mark.anyio

ALL = tuple(SHAPES)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA0Z\n" * 20 + "-----END RSA PRIVATE KEY-----"
FOUND = {
    "4111 1111 1111 1111": "[CARD]",
    "4111-1111-1111-1111 123": "[CARD] 123",
    "123 5500005555555559": "123 [CARD]",
    "378282246310005": "[CARD]",
    "DE89 3704 0044 0532 0130 00": "[IBAN]",
    "GB82WEST12345698765432 and more": "[IBAN] and more",
    "123-45-6789": "[SSN]",
    "ann.lee+x@mail.example.com.": "[EMAIL].",
    "<ann@example.org>": "<[EMAIL]>",
    "+49 (30) 901820-00": "[PHONE]",
    "(555) 123-4567": "[PHONE]",
    "AKIAIOSFODNN7EXAMPLE": "[CLOUD_KEY]",
    "AIza" + "SyA1234567890abcdefghijklmnopqrstuv": "[CLOUD_KEY]",
    "ghp_" + "a1B2" * 9: "[TOKEN]",
    "sk-proj-" + "x" * 90 + " end": "[TOKEN] end",
    "xoxb-1234567890-abcdef": "[TOKEN]",
    f"Bearer {JWT}.": "Bearer [JWT]",
    f"key:\n{PEM}\nthanks": "key:\n[PRIVATE_KEY]\nthanks",
    "ann@example.org 4111111111111111": "[EMAIL] [CARD]",
    "4111111111111111,4111111111111111": "[CARD],[CARD]",
    "4111\u00a01111\u202f1111\u20111111": "[CARD]",
    "4111\u200b1111\u20131111\u00ad1111": "[CARD]",
    "DE89\u00a03704\u202f0044\u20110532 0130 00": "[IBAN]",
    r"first\n" + "ghp_" + "a1B2" * 9: r"first\n[TOKEN]",
    r'{"a": "\tAKIAIOSFODNN7EXAMPLE\n"}': r'{"a": "\t[CLOUD_KEY]\n"}',
}
NOT_FOUND = [
    "4111 1111 1111 1112",
    "0000 0000 0000 0000",
    "1234567890123456789012",
    "DE89 3704 0044 0532 0130 01",
    "000-12-3456",
    "666-12-3456",
    "912-12-3456",
    "a@b",
    "@example.org",
    "eyJhbGci.eyJ",
    "sk-short",
    "BEGIN PRIVATE KEY",
    "2026-11-20 07:42:13.123456",
    "the version is 4.1.11 of 1111",
    "550e8400-e29b-41d4-a716-446655440000",
]


def masked(text: str, cuts: list[int], names: tuple[str, ...] = ALL, own: tuple[TextShape, ...] = ()) -> str:
    scanner = Scanner(PatternSearch(names, own).shapes, Masking(blocks=False))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return "".join([*map(scanner.feed, pieces), scanner.finish()])


@pytest.mark.parametrize("text", FOUND, ids=lambda text: text[:24])
def test_a_shape_is_masked_and_wherever_it_is_cut_the_same(text: str) -> None:
    whole = f"x {text} y"
    expected = f"x {FOUND[text]} y"
    if text.startswith("Bearer"):
        expected = "x Bearer [JWT] y"  # a dot may go on a token
    assert masked(whole, []) == expected
    assert {masked(whole, [cut]) for cut in range(len(whole) + 1)} == {expected}
    assert masked(whole, list(range(1, len(whole)))) == expected


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert masked(text, []) == text


def test_cut_at_random_places_the_masked_text_is_the_same() -> None:
    chance = random.Random(7)
    parts = [*FOUND, *NOT_FOUND, "\n", " ", "-", "1", "4", "eyJ", "-----BEGIN", "@", "+", "\u200b", "é", "sk-"]
    own = (TextShape("ticket", LinearExpression(r"(?i)acme-\d{3,9}|x+y", WINDOW - 1), WINDOW - 1),)
    for _ in range(300):
        text = "".join(chance.choice(parts) + chance.choice(["", " ", "acme-12345", "xxxy"]) for _ in range(8))
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(1, 20)))
        assert masked(text, cuts, own=own) == masked(text, [], own=own), (text, cuts)


def test_what_is_held_back_is_no_more_than_the_window() -> None:
    scanner = Scanner(PatternSearch(ALL).shapes, Masking(blocks=False))
    text = "4" * 5000
    sent = 0
    for number, character in enumerate(text, 1):
        sent += len(scanner.feed(character))
        assert number - sent < PatternSearch(ALL).window() <= WINDOW


@pytest.mark.parametrize(
    "shape", [shape for shapes in SHAPES.values() for shape in shapes], ids=lambda shape: shape.name
)
def test_no_expression_is_wider_than_it_says(shape: TextShape) -> None:
    assert isinstance(shape.head, re.Pattern)
    most = _parser.parse(shape.head.pattern, shape.head.flags & ~re.UNICODE).getwidth()[1]
    assert most + 1 <= shape.width < WINDOW
    assert shape.name in LABELS


UGLY = [
    "4" * 20_000,
    "4 " * 10_000,
    "a" * 20_000 + "@",
    "a." * 10_000 + "@a",
    "@" * 20_000,
    "a@" * 10_000,
    "a@a." * 5_000,
    "+" * 20_000,
    "+1 " * 7_000,
    "+1" + "(" * 20_000,
    "eyJ" * 7_000,
    "eyJ" + "a" * 20_000,
    "eyJaaaaaaaaa." * 2_000,
    "-----BEGIN " * 2_000,
    "-----BEGIN PRIVATE KEY-----" * 800,
    "-----BEGIN PRIVATE KEY-----" + "A" * 100_000,
    "sk-" * 7_000,
    "gh" + "p_" * 10_000,
    "AKIA" * 5_000,
    "DE89" * 5_000,
    "DE89 " * 4_000,
    "123-45-" * 3_000,
    "(555) " * 3_000,
    "\u0661" * 20_000,
    "\u200b4" * 10_000,
]


@pytest.mark.parametrize("number", range(200))
def test_an_ugly_text_is_looked_at_no_oftener_than_its_length(number: int) -> None:
    text = UGLY[number % len(UGLY)]
    text = text[number // len(UGLY) * 7 :] + text[: number // len(UGLY) * 11]
    search = PatternSearch(ALL)
    scanner = Scanner(search.shapes, Masking(blocks=False))
    scanner.feed(text)
    scanner.finish()
    assert scanner.looks <= len(search.shapes) * (len(text) + 10)


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|a)*b", "(a*)*b", "a{1,200}b", "(x+x+)+y", "(?:a|aa|aaa)+!"])
def test_an_expression_of_ones_own_reads_each_place_no_further_than_its_width(expression: str) -> None:
    pattern = LinearExpression(expression, 100)
    text = "a" * 2_000 + "x" * 500
    pattern.search(text, 0)
    assert pattern.steps <= len(text) * 100


@pytest.mark.parametrize(
    "expression",
    [
        *("(", ")", "[a", "a**", "a+?", "(?=x)", r"(a)\1", "a{300}", "^a", "a$", "a|", "x*", "", "{2}", "\\", r"\p"),
        "((a{200}){200})",
    ],
)
def test_an_expression_that_is_not_known_is_refused(expression: str) -> None:
    with pytest.raises(BadExpression):
        LinearExpression(expression, 100)


@pytest.mark.parametrize(
    "expression",
    [r"ACME-\d{3}", "a(b|cd)*e", "[A-Z]{2,3}x+", "(a|b){2,4}c?", "x{3,}", "(?:a?){3}b", r"[^a-c\d]+!", r"\w+@\w"],
)
def test_an_expression_matches_what_pythons_own_does_at_its_longest(expression: str) -> None:
    pattern = LinearExpression(expression, 100)
    pythons = re.compile(expression)
    chance = random.Random(expression)
    for _ in range(150):
        text = "".join(chance.choice("abcdexABCME-0123 !@") for _ in range(chance.randrange(20)))
        spans = [(start, end) for start in range(len(text)) for end in range(len(text), start, -1)]
        expected = next((text[start:end] for start, end in spans if pythons.fullmatch(text, start, end)), None)
        match = pattern.search(text, 0)
        assert (match.group() if match else None) == expected, text


async def test_the_hook_masks_or_blocks_whole_texts_and_says_what_it_was() -> None:
    event = GuardEvent(point="request", texts=["card 4111111111111111", "nothing"])
    assert await PatternSearch(("cards",)).check(event) == Mask(["card [CARD]", "nothing"], ["cards"])
    assert await PatternSearch(("cards",), blocks=True).check(event) == Block(
        "it holds what looks like CARD", ["cards"]
    )
    assert await PatternSearch(("emails",)).check(event) == Pass()


def test_a_match_that_blocks_says_its_shape_and_nothing_of_the_match() -> None:
    scanner = Scanner(PatternSearch(("cards",)).shapes, Masking(blocks=True))
    with pytest.raises(ShapeFound, match=r"^cards$"):
        scanner.feed("4111111111111111" + " " * 300)
    assert "4111" not in str(Blocked("h", "it holds what looks like CARD", "blocked"))
