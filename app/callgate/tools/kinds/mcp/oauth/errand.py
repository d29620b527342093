"""The requests of one login or renewal: few, short, bounded together, over the guarded transport and without redirects."""

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

import httpx2
import msgspec

from callgate.tools.kinds.http.addresses import AddressRules
from callgate.tools.kinds.http.client import AddressRefused, Web, read_bounded
from callgate.tools.kinds.mcp.oauth.documents import MAX_BYTES

MAX_REQUESTS: Final = 6
SECONDS: Final = 10.0
FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/json"


class OutOfReach(Exception):
    """Raised where an answer did not come, or not as it has to. Its text names the host alone."""


class ErrandAnswer(msgspec.Struct, frozen=True):
    """An answer, whole."""

    status: int
    body: bytes
    challenges: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class Errand:
    """Sends the requests of one login or renewal, up to their limit."""

    def __init__(self, web: Web, rules: AddressRules, requests: int = MAX_REQUESTS) -> None:
        """`rules`: the addresses that may be asked."""
        self._web = web
        self._rules = rules
        self._left = requests
        self._until = asyncio.get_running_loop().time() + SECONDS

    async def get(self, url: str) -> ErrandAnswer:
        """Raises `OutOfReach`."""
        return await self._ask("GET", url, {"Accept": JSON}, None)

    async def post_form(
        self, url: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> ErrandAnswer:
        """Raises `OutOfReach`."""
        return await self._ask(
            "POST", url, {"Accept": JSON, "Content-Type": FORM, **(headers or {})}, urlencode(fields).encode()
        )

    async def post_json(self, url: str, value: object, headers: Mapping[str, str] | None = None) -> ErrandAnswer:
        """Raises `OutOfReach`."""
        content = msgspec.json.encode(value)
        return await self._ask("POST", url, {"Accept": JSON, "Content-Type": JSON, **(headers or {})}, content)

    async def _ask(self, method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> ErrandAnswer:
        try:
            address = httpx2.URL(url)
        except httpx2.InvalidURL:
            raise OutOfReach("an address that cannot be used") from None
        host = address.host
        if not self._left:
            raise OutOfReach(f"{host} was not asked any more, after {MAX_REQUESTS} requests")
        self._left -= 1
        if self._web.closed:
            raise OutOfReach("the server is being shut down")
        client = self._web.client(self._rules)
        try:
            async with asyncio.timeout_at(self._until):
                request = client.build_request(
                    method, address, headers={**headers, "Accept-Encoding": "identity"}, content=content
                )
                response = await client.send(request, stream=True)
                try:
                    body = await read_bounded(response, MAX_BYTES)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise OutOfReach(f"{host} did not answer within {SECONDS:g} s") from None
        except AddressRefused as refused:
            raise OutOfReach(f"{host} has a {refused.kind} address, which is not allowed") from None
        except httpx2.TransportError as error:
            raise OutOfReach(f"{host} cannot be reached ({type(error).__name__})") from None
        if body.missing:
            raise OutOfReach(f"{host} answered with more than {MAX_BYTES} bytes")
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise OutOfReach(f"{host} sent an encoded answer, which was not asked for")
        return ErrandAnswer(response.status_code, body.data, tuple(response.headers.get_list("www-authenticate")))
