"""`WWW-Authenticate`, as servers write it."""

import pytest

from callgate.tools.kinds.mcp.oauth.challenges import (
    MAX_LENGTH,
    MAX_SCOPE,
    BadChallenge,
    Challenge,
    bearer_challenge,
    challenges_in,
    scopes_of,
)


@pytest.mark.parametrize(
    ("header", "challenges"),
    [
        ("Bearer", [("bearer", {}, "")]),
        ('Bearer realm="x"', [("bearer", {"realm": "x"}, "")]),
        ('bearer SCOPE="a"', [("bearer", {"scope": "a"}, "")]),
        ("Bearer scope=a", [("bearer", {"scope": "a"}, "")]),
        ('Bearer xscope="a"', [("bearer", {"xscope": "a"}, "")]),
        (
            'Bearer error_description="ask for scope=admin", scope="files:read"',
            [("bearer", {"error_description": "ask for scope=admin", "scope": "files:read"}, "")],
        ),
        (
            r'Bearer error_description="say \"scope=\\\"", scope="a"',
            [("bearer", {"error_description": r'say "scope=\"', "scope": "a"}, "")],
        ),
        (
            'Basic realm="a, b", Bearer scope="c d"',
            [("basic", {"realm": "a, b"}, ""), ("bearer", {"scope": "c d"}, "")],
        ),
        ("Negotiate, Bearer", [("negotiate", {}, ""), ("bearer", {}, "")]),
        ("Negotiate aGVsbG8=, Bearer scope=a", [("negotiate", {}, "aGVsbG8="), ("bearer", {"scope": "a"}, "")]),
        ('Bearer  realm = "x" ,, scope = a ,', [("bearer", {"realm": "x", "scope": "a"}, "")]),
        ("", []),
        (" , ", []),
    ],
)
def test_challenges_are_read_as_the_grammar_says(
    header: str, challenges: list[tuple[str, dict[str, str], str]]
) -> None:
    assert challenges_in([header]) == [Challenge(*challenge) for challenge in challenges]


@pytest.mark.parametrize(
    "header",
    [
        'scope="a"',
        'Bearer scope="a" realm="b"',
        'Bearer scope="a',
        'Bearer scope="a", scope="b"',
        'Bearer scope="a", SCOPE="b"',
        "Bearer Basic realm=x",
        "Bearer abc, realm=x",
        'Bearer scope="a\x00"',
        "Bearer scope=a;b",
        "Bearer resource_metadata=https://a.example/x",
        "Bearer " + "a=b, " * MAX_LENGTH,
    ],
)
def test_what_is_no_challenge_is_none(header: str) -> None:
    with pytest.raises(BadChallenge):
        challenges_in([header])
    assert bearer_challenge([header]) is None


def test_the_first_bearer_challenge_of_all_headers_counts() -> None:
    challenge = bearer_challenge(['Digest nonce="scope=x"', 'Bearer scope="a"', 'Bearer scope="b"'])
    assert challenge is not None
    assert challenge.parameters == {"scope": "a"}


def test_scopes_are_words_of_some_length() -> None:
    assert scopes_of("b a b") == ("b", "a")
    assert scopes_of("") == ()
    assert scopes_of("a" * MAX_SCOPE) == ("a" * MAX_SCOPE,)
    for text in ("a" * (MAX_SCOPE + 1), 'a"b', "a\\b", "a\nb", "ä"):
        with pytest.raises(BadChallenge):
            scopes_of(text)
