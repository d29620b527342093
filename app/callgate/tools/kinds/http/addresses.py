"""Decides which IP addresses a tool may connect to.

Only global unicast addresses, unless the operator allows others. The tables are IANA's special-purpose registries, because
what `ipaddress` calls private differs between Python releases. An IPv6 address with an embedded IPv4 address (mapped,
compatible, 6to4, NAT64, Teredo, ISATAP) is checked by the embedded one.
"""

import fnmatch
import ipaddress
import socket
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

import msgspec

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Kind(StrEnum):
    """The kinds of refused addresses; the values appear in messages."""

    PRIVATE = "private"
    LOOPBACK = "loopback"
    SHARED = "carrier-grade NAT"
    LINK_LOCAL = "link-local"
    METADATA = "cloud metadata"
    MULTICAST = "multicast"
    UNSPECIFIED = "unspecified"
    RESERVED = "reserved"
    OWN = "this server's own"


HOME_KINDS = frozenset({Kind.PRIVATE, Kind.LOOPBACK, Kind.SHARED})
"""The kinds that `allow_private` allows. Link-local and metadata addresses return credentials, and are allowed only when
listed as a network."""


class AddressRules(msgspec.Struct, frozen=True):
    """The addresses that an operator allows one tool beyond the public internet."""

    allow_private: bool = False
    hosts: frozenset[str] = msgspec.field(default_factory=frozenset)
    """Names (or globs) whose private addresses are allowed."""
    networks: frozenset[Network] = msgspec.field(default_factory=frozenset)
    """Networks that are allowed, of any kind."""
    own_ports: frozenset[int] = msgspec.field(default_factory=frozenset)
    """The ports at which this server listens itself, at any address of its machine, which are never allowed."""

    @classmethod
    def of(cls, *, allow_private: bool = False, allow: Iterable[str] = ()) -> "AddressRules":
        """Make the rules of a config. `allow`: host names and networks."""
        hosts: set[str] = set()
        networks: set[Network] = set()
        for entry in allow:
            try:
                networks.add(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                hosts.add(entry.lower().rstrip("."))
        return cls(allow_private=allow_private, hosts=frozenset(hosts), networks=frozenset(networks))

    def refusal(self, host: str, address: Address, port: int = 0) -> Kind | None:
        """Return why a connection to `host` at `address` is refused, or None where it is allowed."""
        if port in self.own_ports and _is_of_this_machine(address):
            return Kind.OWN
        if any(address in network for network in self.networks):
            return None
        kind = kind_of(address)
        name = host.lower().rstrip(".")
        if kind in HOME_KINDS and (
            self.allow_private or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.hosts)
        ):
            return None
        return kind


PUBLIC_ONLY = AddressRules()


def _is_of_this_machine(address: Address) -> bool:
    """True if an address is one of this machine's, so that a socket can be bound to it."""
    if isinstance(address, ipaddress.IPv6Address) and any(map(_is_of_this_machine, _carried(address))):
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def kind_of(address: Address) -> Kind | None:
    """Return the kind of an address that is not public unicast, or None."""
    if isinstance(address, ipaddress.IPv4Address):
        return _listed(address, _V4)
    address = ipaddress.IPv6Address(int(address))  # without a zone: fe80::1%eth0 is fe80::1
    special = _listed(address, _V6)
    if special is not None:
        return special
    carried = _carried(address)
    for inner in carried:
        kind = _listed(inner, _V4)
        if kind is not None:
            return kind
    if carried or address in _GLOBAL_UNICAST:
        return None
    return Kind.RESERVED


def _listed(address: Address, table: tuple[tuple[Network, Kind], ...]) -> Kind | None:
    return next((kind for network, kind in table if address in network), None)


def _carried(address: ipaddress.IPv6Address) -> tuple[ipaddress.IPv4Address, ...]:
    """Return the IPv4 addresses to which packets to `address` may be sent."""
    number = int(address)
    low = ipaddress.IPv4Address(number & 0xFFFF_FFFF)
    if address in _MAPPED or address in _COMPATIBLE or address in _TRANSLATED or address in _NAT64:
        return (low,)
    if address in _SIX_TO_FOUR:
        return (ipaddress.IPv4Address(number >> 80 & 0xFFFF_FFFF),)
    if address in _TEREDO:
        server = ipaddress.IPv4Address(number >> 64 & 0xFFFF_FFFF)
        client = ipaddress.IPv4Address(number & 0xFFFF_FFFF ^ 0xFFFF_FFFF)
        return (server, client)
    if number >> 32 & 0xFDFF_FFFF == _ISATAP:
        return (low,)
    return ()


def _table(*rows: tuple[str, Kind]) -> tuple[tuple[Network, Kind], ...]:
    return tuple((ipaddress.ip_network(text), kind) for text, kind in rows)


_V4 = _table(
    ("169.254.169.254/32", Kind.METADATA),  # AWS, Google, Azure and others
    ("169.254.170.2/32", Kind.METADATA),  # AWS container credentials
    ("100.100.100.200/32", Kind.METADATA),  # Alibaba
    ("168.63.129.16/32", Kind.METADATA),  # Azure's wire server, in public space
    ("192.0.0.192/32", Kind.METADATA),  # Oracle
    ("0.0.0.0/8", Kind.UNSPECIFIED),
    ("10.0.0.0/8", Kind.PRIVATE),
    ("100.64.0.0/10", Kind.SHARED),
    ("127.0.0.0/8", Kind.LOOPBACK),
    ("169.254.0.0/16", Kind.LINK_LOCAL),
    ("172.16.0.0/12", Kind.PRIVATE),
    ("192.0.0.0/24", Kind.RESERVED),
    ("192.0.2.0/24", Kind.RESERVED),
    ("192.88.99.0/24", Kind.RESERVED),
    ("192.168.0.0/16", Kind.PRIVATE),
    ("198.18.0.0/15", Kind.RESERVED),
    ("198.51.100.0/24", Kind.RESERVED),
    ("203.0.113.0/24", Kind.RESERVED),
    ("224.0.0.0/4", Kind.MULTICAST),
    ("240.0.0.0/4", Kind.RESERVED),
)

_V6 = _table(
    ("fd00:ec2::254/128", Kind.METADATA),  # AWS
    ("fd00:ec2::23/128", Kind.METADATA),  # AWS EKS pod identity
    ("fd20:ce::254/128", Kind.METADATA),  # Google
    ("::/128", Kind.UNSPECIFIED),
    ("::1/128", Kind.LOOPBACK),
    ("64:ff9b:1::/48", Kind.PRIVATE),  # NAT64 of a local network, with unknown targets
    ("100::/64", Kind.RESERVED),
    ("2001:2::/48", Kind.RESERVED),
    ("2001:10::/28", Kind.RESERVED),
    ("2001:20::/28", Kind.RESERVED),
    ("2001:db8::/32", Kind.RESERVED),
    ("3fff::/20", Kind.RESERVED),
    ("fc00::/7", Kind.PRIVATE),
    ("fe80::/10", Kind.LINK_LOCAL),
    ("fec0::/10", Kind.PRIVATE),
    ("ff00::/8", Kind.MULTICAST),
)

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_TRANSLATED = ipaddress.IPv6Network("::ffff:0:0:0/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_ISATAP = 0x0000_5EFE
"""The upper half of the interface identifier, with or without the universal bit."""
