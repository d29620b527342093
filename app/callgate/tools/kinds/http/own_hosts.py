"""Tells the hosts that are plainly the operator's own, so that their addresses may be private."""

import ipaddress
from typing import Final

from callgate.tools.kinds.http.addresses import HOME_KINDS, PUBLIC_ONLY, Address, AddressRules, kind_of

HOME_SUFFIXES: Final = (".internal", ".local", ".lan", ".localhost", ".home.arpa", ".svc")
"""Suffixes of names that cannot be registered in public."""


def rules_of_host(host: str, *, allow_private: bool | None = None) -> AddressRules:
    """Return the addresses that a server of the config may have.

    Private addresses of its own host are allowed where the operator says so, and by default if the host is certainly the
    operator's own: a private address, `localhost`, a name without a dot. A public name with a private address is refused.
    Link-local and metadata addresses are always refused.
    """
    if allow_private is None:
        address = literal(host)
        if address is not None:
            allow_private = kind_of(address) in HOME_KINDS
        else:
            name = host.lower().rstrip(".")
            allow_private = "." not in name or name.endswith(HOME_SUFFIXES)
    if allow_private:
        return AddressRules(hosts=frozenset({host.lower().rstrip(".")}))
    return PUBLIC_ONLY


def literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
