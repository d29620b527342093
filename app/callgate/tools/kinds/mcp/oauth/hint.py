"""Says what an entry without `oauth` lacks, where its server wants a login."""

from collections.abc import Sequence

from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import Web
from callgate.tools.kinds.mcp.oauth.discovery import CannotLogIn, discovered_from
from callgate.tools.kinds.mcp.oauth.errand import Errand


async def login_hint(web: Web, rules: AddressRules, url: str, challenges: Sequence[str]) -> str:
    """Return what to do about a server that refused a request without a token; empty where it wants no login by OAuth."""
    try:
        place = await discovered_from(Errand(web, rules), url, challenges, issuer=None, legacy=False)
    except CannotLogIn:
        return ""
    return f"it wants OAuth at {place.server.issuer}: add `oauth: {{}}` to its entry"
