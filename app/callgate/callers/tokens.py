"""The errors of tokens that an issuer has signed."""

from collections.abc import Awaitable, Callable

from callgate.conversation.errors import ChatError


def looks_like_token(text: str) -> bool:
    """Return whether a credential has the shape of a token: three parts, the first of which is base64url of an object."""
    return text.startswith("ey") and text.count(".") == 2


class TokenRefused(ChatError):
    """A 401 for a token that says nobody."""

    def __init__(self, why: str, reason: str) -> None:
        super().__init__(401, f"The token is refused: {why}.", code="invalid_token")
        self.reason = reason
        """The same in one word, for metrics."""


class TokenEnded(TokenRefused):
    """A 401 for a token that was valid and has ended."""

    def __init__(self) -> None:
        super().__init__("it has expired; sign in again", "expired")


class KeysWanted(ChatError):
    """Raised where a token may be signed with a key that its issuer has published since: to be asked again after `fetch`."""

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        super().__init__(
            503,
            "The token cannot be checked at the moment: the keys of its issuer are not known. Try again in a moment.",
            type="server_error",
            code="issuer_unavailable",
            retry_after=5.0,
        )
        self.fetch = fetch
