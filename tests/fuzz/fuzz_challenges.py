"""`WWW-Authenticate` of tool servers: challenges or `BadChallenge`, and the same when they are written anew."""

from callgate.tools.kinds.mcp.oauth.challenges import (
    BadChallenge,
    Challenge,
    bearer_challenge,
    challenges_in,
    scopes_of,
)


def run(data: bytes) -> None:
    header = data.decode("latin-1")
    try:
        challenges = challenges_in([header])
    except BadChallenge:
        assert bearer_challenge([header]) is None
        return
    for challenge in challenges:
        assert challenge.scheme == challenge.scheme.lower()
        assert not (challenge.token and challenge.parameters)
        assert all(name == name.lower() for name in challenge.parameters)
        try:
            scopes = scopes_of(challenge.parameters.get("scope", ""))
        except BadChallenge:
            continue
        assert all(scope and " " not in scope for scope in scopes)
    assert challenges_in([", ".join(map(written, challenges))]) == challenges


def written(challenge: Challenge) -> str:
    """A challenge as a server would write it."""
    if challenge.token:
        return f"{challenge.scheme} {challenge.token}"
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in challenge.parameters.items()}
    return f"{challenge.scheme} " + ", ".join(f'{name}="{value}"' for name, value in escaped.items())
