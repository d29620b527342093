import base64
import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from callgate.config.redaction import _PATTERNS, _SLICE, MASK, Redactor, _folded

SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=60)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)


def around(secret):
    """Values that hold the secret somewhere: inside texts, as keys, as bytes, in errors, however deep."""
    texts = st.builds(lambda before, after: f"{before}{secret}{after}", st.text(max_size=5), st.text(max_size=5))
    leaves = texts | texts.map(lambda text: text.encode()) | texts.map(ValueError) | texts.map(Exception)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner | PLAIN, max_size=3)
            | st.dictionaries(texts | st.text(max_size=5), inner | PLAIN, max_size=3)
            | st.tuples(inner, PLAIN)
            | st.builds(lambda text: {text}, texts)
        ),
        max_leaves=5,
    )


@given(st.data(), SECRETS)
def test_a_known_secret_never_survives_wherever_it_stands(data, secret):
    assume(secret not in MASK)
    masked = Redactor([secret]).value(data.draw(around(secret)))

    assert secret not in repr(masked)
    assert secret not in json.dumps(masked, ensure_ascii=False)
    assert json.dumps(secret)[1:-1] not in json.dumps(masked)


@given(SECRETS)
def test_a_known_secret_is_masked_in_every_usual_encoding(secret):
    redactor = Redactor([secret])
    encoded = secret.encode()

    for form in (
        secret,
        json.dumps({"key": secret}),
        repr([secret]),
        quote(secret, safe=""),
        quote(secret),
        f"Basic {base64.b64encode(encoded).decode()}",
    ):
        assert MASK in redactor.text(form)
        assert form not in redactor.text(form) or form == MASK


@given(st.lists(SECRETS, min_size=1, max_size=5, unique=True))
def test_one_secret_that_begins_with_another_is_masked_whole(secrets):
    redactor = Redactor(secrets)

    for secret in secrets:
        assert secret not in redactor.text(secret) or secret in MASK


def test_a_numeric_secret_is_masked_as_a_number_too():
    assert Redactor(["1234567890"]).value({"count": 1234567890, "of": 12}) == {"count": MASK, "of": 12}


def test_lines_of_a_long_secret_are_masked_when_a_traceback_indents_them():
    secret = "first-line-of-the-secret\nsecond-line-of-the-secret"

    masked = Redactor([secret]).text("    first-line-of-the-secret\n    second-line-of-the-secret\n")

    assert masked == f"    {MASK}\n    {MASK}\n"


def test_a_short_value_is_no_secret_or_logs_would_be_unreadable():
    assert Redactor(["none", ""]).text("none of them") == "none of them"


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "X-Api-Key", "authorization", "Authorization", "password", "DB_PASSWORD", "client_secret",
     "access_token", "token", "cookie", "Set-Cookie", "aws_secret_access_key", "api_keys", "credentials", "x-goog-api-key"],
)  # fmt: skip
def test_a_value_under_a_secrets_name_is_masked_whatever_it_is(name):
    assert Redactor().value({name: "tiny"}) == {name: MASK}
    assert Redactor().value({name: ["a", {"b": 1}]}) == {name: MASK}
    assert Redactor().value("tiny", name) == MASK


@pytest.mark.parametrize(
    "name", ["max_tokens", "prompt_tokens", "tokens", "tool", "model", "auth", "monkey", "author", "event", "keyword"]
)
def test_an_innocent_name_is_left_alone(name):
    assert Redactor().value({name: "tiny"}) == {name: "tiny"}


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Incorrect API key provided: sk-proj-abcdefgh12345678", "sk-proj-abcdefgh12345678"),
        ("key cg-ABCdef_123-4567890abcdef", "cg-ABCdef_123-4567890abcdef"),
        ("{'Authorization': 'Bearer abc.def-ghi_jkl'}", "abc.def-ghi_jkl"),
        ("authorization: bearer  0123456789abcdef", "0123456789abcdef"),
        ("Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
        ("GET https://h/v1beta/models?key=AIzaSyabcdefghijklmnopqrstuvwxyz123456", "AIzaSyabcdefghijklmnopqrstuvwxyz"),
        ("GET /x?a=1&api_key=abcdefgh1234", "abcdefgh1234"),
        ("redis://user:hunter2@redis:6379/0", "hunter2"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("token ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJzdWIiOiIxIn0"),
        ('{"password": "correct-horse"}', "correct-horse"),
        ("client_secret=abcdefgh1234", "abcdefgh1234"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
        ("-----BEGIN PRIVATE KEY-----\nMIIcut", "MIIcut"),
    ],
)
def test_what_looks_like_a_secret_is_masked_without_being_registered(text, secret):
    masked = Redactor().text(text)

    assert secret not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    "text",
    [
        "a task-based ask-me-anything",
        "https://example.com:8080/path?q=1",
        "tokens: 12",
        "the key is to try",
        "sk-short",
    ],
)
def test_ordinary_text_is_left_alone(text):
    assert Redactor().text(text) == text


@pytest.mark.parametrize(
    ("hints", "pattern", "_"), _PATTERNS, ids=[pattern.pattern[:24] for _, pattern, _ in _PATTERNS]
)
@given(data=st.data())
def test_the_first_quick_look_misses_nothing_that_a_pattern_would_find(hints, pattern, _, data):
    folded = _folded(data.draw(st.from_regex(pattern)))
    assert any(hint in folded for hint in hints)


def test_a_known_secret_is_found_in_a_long_text_too():
    redactor = Redactor(["planted secret"])
    assert redactor.text("x" * 5000 + "planted%20secret" + "y" * 5000) == "x" * 5000 + MASK + "y" * 5000


@pytest.mark.parametrize(
    "secret",
    [
        "sk-" + "a" * 40,
        "AKIA" + "B" * 16,
        "eyJ" + "a" * 6000 + ".payload.signature",
        "-----BEGIN RSA PRIVATE KEY-----" + "M" * 9000 + "-----END RSA PRIVATE KEY-----",
        "Authorization: Basic " + "c2VjcmV0" * 4,
        "registered-secret",
    ],
    ids=["key", "access key", "token", "private key", "header", "registered"],
)
def test_a_secret_of_a_long_text_is_masked_where_two_slices_meet(secret):
    redactor = Redactor(["registered-secret"])
    for before in range(_SLICE - len(secret) - 2, _SLICE + 2, 1 if len(secret) < 100 else 701):
        text = f"{'. ' * (before // 2)}{' ' * (before % 2)}{secret} and on{' .' * _SLICE}"
        expected = text.replace(secret, redactor.text(secret))
        assert redactor.text(text) == expected


def test_what_only_looks_like_a_secret_at_the_end_of_a_slice_is_left_alone():
    text = " " * (_SLICE - 20) + "AKIA" + "B" * 40 + " " * _SLICE
    assert Redactor(()).text(text) == text


def test_looking_through_a_long_text_lets_other_threads_go_on(monkeypatch):
    given_away: list[float] = []
    monkeypatch.setattr(time, "sleep", given_away.append)
    text = "a key is a word " * 8000

    assert Redactor(()).text(text) == text
    assert len(given_away) > len(text) // _SLICE


def test_a_value_that_holds_itself_ends():
    loop: dict[str, Any] = {"secret-bearing": "planted-secret"}
    loop["self"] = loop

    assert "planted-secret" not in repr(Redactor(["planted-secret"]).value(loop))


def test_a_secret_added_later_is_masked_from_then_on():
    redactor = Redactor()
    assert redactor.text("later-secret") == "later-secret"

    redactor.add("later-secret")

    assert redactor.text("later-secret") == MASK


@pytest.mark.parametrize("text", ["bearer " * 20_000, "://" * 50_000, "-----BEGIN PRIVATE KEY-----" * 5_000, "eyJ" * 50_000, "sk-" * 50_000, "token=" * 40_000, "?key=" * 40_000])  # fmt: skip
def test_hostile_text_is_masked_in_good_time(text):
    assert isinstance(Redactor(["planted-secret"]).text(text), str)
