"""Fetches images and files by the URLs in messages, with addresses guarded as those of tools are."""

import httpx2

from callgate.models.media import CannotFetch
from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules
from callgate.tools.kinds.http.client import AddressRefused, Web, read_bounded

MOST_REDIRECTS = 3
KINDS = ("image/", "audio/", "video/", "text/", "application/pdf", "application/json", "application/octet-stream")


async def fetch_media(url: str, max_bytes: int, rules: AddressRules = PUBLIC_ONLY) -> tuple[bytes, str]:
    """Fetch a URL; return its content and content type. No connection is kept."""
    web = Web()
    try:
        for _ in range(MOST_REDIRECTS + 1):
            async with web.client(rules).stream("GET", url) as response:
                if response.is_redirect and (to := response.headers.get("location")):
                    url = str(response.url.join(to))
                    continue
                if response.status_code != 200:
                    raise CannotFetch(f"the server answers {response.status_code}")
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                if not kind.startswith(KINDS):
                    raise CannotFetch(f"its content type is {kind[:100] or 'missing'}")
                body = await read_bounded(response, max_bytes)
                if body.missing:
                    raise CannotFetch(f"it is longer than {max_bytes} bytes")
                return body.data, kind
        raise CannotFetch("it is redirected too often")
    except AddressRefused as error:
        raise CannotFetch(str(error)) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise CannotFetch(f"its server cannot be reached ({type(error).__name__})") from None
    finally:
        await web.close()
