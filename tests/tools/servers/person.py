"""A person at a browser, who logs in at oidc-provider's pages: `python -m tests.tools.servers.person NAME ADDRESS`."""

import re
import sys
from html import unescape
from urllib.parse import urljoin

import httpx

MOST_PAGES = 20
PATIENCE = 60.0
"""Seconds for a page: its first ones take five on a busy machine, which is what httpx waits by itself."""
_FORM = re.compile(r'<form[^>]*action="([^"]+)"')
_HIDDEN = re.compile(r'<input[^>]*type="hidden"[^>]*name="([^"]+)"[^>]*value="([^"]*)"')


def log_in(address: str, name: str) -> str:
    """Fill in the pages up to the address back to the client; return that."""
    with httpx.Client(trust_env=False, timeout=PATIENCE) as browser:
        page = browser.get(address)
        for _ in range(MOST_PAGES):
            if page.is_redirect:
                target = urljoin(str(page.url), page.headers["location"])
                if "/callback?" in target or "/cb?" in target:
                    return target
                page = browser.get(target)
                continue
            form = _FORM.search(page.text)
            assert form is not None, f"{page.status_code} {page.text[:500]}"
            fields = dict(_HIDDEN.findall(page.text))
            if 'name="login"' in page.text:
                fields |= {"login": name, "password": "x"}
            page = browser.post(urljoin(str(page.url), unescape(form[1])), data=fields)
    raise AssertionError("no way back to the client")


if __name__ == "__main__":
    back = log_in(sys.argv[2], sys.argv[1])
    print(httpx.get(back, trust_env=False, timeout=PATIENCE).text)  # noqa: T201 - what the browser shows in the end
