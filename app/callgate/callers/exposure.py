"""Says where a server may listen without keys, and what may be done there."""

from collections.abc import Sequence
from typing import Final

from callgate.callers.caller import Keyless
from callgate.callers.origin_guard import is_loopback

KEYS_FILE: Final = "keys.sqlite3"
"""The file of `data_dir` that has the keys which are made while a server runs."""


def check_exposure(
    host: str, auth: str, keys: int, *, had_keys: bool = False, has_empty_list: bool = False
) -> str | None:
    """Return why the server must not listen on `host` with this many keys, or None. `has_empty_list`: the config says that there
    are none, which is not the same as saying nothing."""
    if keys or auth == "off":
        return None
    if had_keys:
        return (
            "this server had keys, and none is left, which would let everyone in: put one back under `keys`, or say "
            "`auth: off` if that is meant; `callgate keys create NAME` makes one"
        )
    if has_empty_list:
        return (
            "`keys` is an empty list, by which nobody would need one: name a key, leave `keys` out to serve this machine "
            "alone, or say `auth: off` to let everyone in; `callgate keys create NAME` makes one"
        )
    if is_loopback(host):
        return None
    return (
        f"`{host}` can be reached by others and there are no keys: add one under `keys`, "
        "listen on 127.0.0.1, or say `auth: off` to let everyone in; `callgate keys create NAME` makes one"
    )


def is_alone(host: str, auth: str, public_url: str | None, allowed_hosts: Sequence[str]) -> bool:
    """Return whether a server without keys serves whoever sits at this machine and nobody else. Behind a proxy, which addresses it by
    another name, it may serve anybody."""
    return auth == "keys" and is_loopback(host) and public_url is None and not allowed_hosts


def keyless_may_approve(host: str, keyless: Keyless) -> bool:
    """Return whether callers without a key may decide about approvals, where no key is required."""
    return keyless == "everybody" or (keyless == "this_machine" and is_loopback(host))
