import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.tools.kinds.http.addresses import PUBLIC_ONLY, AddressRules, Kind, kind_of

REFUSED = {
    "0.0.0.0": Kind.UNSPECIFIED,
    "0.1.2.3": Kind.UNSPECIFIED,
    "10.0.0.1": Kind.PRIVATE,
    "172.16.0.1": Kind.PRIVATE,
    "172.31.255.255": Kind.PRIVATE,
    "192.168.1.1": Kind.PRIVATE,
    "100.64.0.1": Kind.SHARED,
    "100.127.255.254": Kind.SHARED,
    "100.100.100.200": Kind.METADATA,
    "127.0.0.1": Kind.LOOPBACK,
    "127.8.9.10": Kind.LOOPBACK,
    "169.254.1.1": Kind.LINK_LOCAL,
    "169.254.169.254": Kind.METADATA,
    "168.63.129.16": Kind.METADATA,
    "192.0.0.192": Kind.METADATA,
    "192.0.2.1": Kind.RESERVED,
    "198.18.0.1": Kind.RESERVED,
    "224.0.0.1": Kind.MULTICAST,
    "239.255.255.250": Kind.MULTICAST,
    "255.255.255.255": Kind.RESERVED,
    "::": Kind.UNSPECIFIED,
    "::1": Kind.LOOPBACK,
    "fc00::1": Kind.PRIVATE,
    "fd12:3456::1": Kind.PRIVATE,
    "fd00:ec2::254": Kind.METADATA,
    "fe80::1": Kind.LINK_LOCAL,
    "fe80::1%eth0": Kind.LINK_LOCAL,
    "fec0::1": Kind.PRIVATE,
    "ff02::1": Kind.MULTICAST,
    "2001:db8::1": Kind.RESERVED,
    "100::1": Kind.RESERVED,
    "4000::1": Kind.RESERVED,
    "::ffff:127.0.0.1": Kind.LOOPBACK,
    "::ffff:169.254.169.254": Kind.METADATA,
    "::ffff:0:10.0.0.1": Kind.PRIVATE,
    "::127.0.0.1": Kind.LOOPBACK,
    "::10.1.2.3": Kind.PRIVATE,
    "64:ff9b::127.0.0.1": Kind.LOOPBACK,
    "64:ff9b::a9fe:a9fe": Kind.METADATA,
    "64:ff9b:1::8.8.8.8": Kind.PRIVATE,
    "2002:7f00:1::": Kind.LOOPBACK,
    "2002:a9fe:a9fe::1": Kind.METADATA,
    "2002:c0a8:101::1": Kind.PRIVATE,
    "2001:0:7f00:1::": Kind.LOOPBACK,
    "2001:0:808:808:0:0:80ff:fffe": Kind.LOOPBACK,
    "2600::5efe:10.0.0.1": Kind.PRIVATE,
    "2600::200:5efe:10.0.0.1": Kind.PRIVATE,
}
ALLOWED = [
    "8.8.8.8",
    "1.1.1.1",
    "172.15.255.255",
    "172.32.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "2606:4700::1111",
    "2a00:1450:4001::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
]
PRIVATE_V4 = st.sampled_from(["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16", "100.64.0.0/10"])


@pytest.mark.parametrize("text, kind", REFUSED.items())
def test_an_address_that_is_not_public_is_refused_for_what_it_is(text, kind):
    address = ipaddress.ip_address(text)
    assert kind_of(address) is kind
    assert PUBLIC_ONLY.refusal("host", address) is kind


@pytest.mark.parametrize("text", ALLOWED)
def test_a_public_address_is_allowed_in_whatever_clothes(text):
    assert kind_of(ipaddress.ip_address(text)) is None


@given(PRIVATE_V4.flatmap(lambda network: st.ip_addresses(network=network)))
def test_no_ipv6_form_hides_a_private_ipv4_address(inner):
    number = int(inner)
    forms = [
        0xFFFF << 32 | number,
        0xFFFF << 48 | number,
        number,
        0x64FF9B << 96 | number,
        0x2002 << 112 | number << 80 | 1,
        0x20010000 << 96 | number << 64,
        0x20010000 << 96 | 0x08080808 << 64 | number ^ 0xFFFFFFFF,
        0x2600 << 112 | 0x5EFE << 32 | number,
    ]
    for form in forms:
        assert kind_of(ipaddress.IPv6Address(form)) is not None, ipaddress.IPv6Address(form)


@given(st.ip_addresses(v=4))
def test_what_python_calls_not_global_is_refused_too(address):
    if not address.is_global:
        assert kind_of(address) is not None


@pytest.mark.parametrize("text", ["127.0.0.1", "10.0.0.1", "::1", "fd12::1", "100.64.0.1", "::ffff:127.0.0.1"])
def test_allow_private_opens_the_operators_own_machines(text):
    assert AddressRules(allow_private=True).refusal("host", ipaddress.ip_address(text)) is None


@pytest.mark.parametrize(
    "text", ["169.254.169.254", "fe80::1", "fd00:ec2::254", "0.0.0.0", "224.0.0.1", "100.100.100.200"]
)
def test_allow_private_does_not_open_what_hands_out_credentials(text):
    assert AddressRules(allow_private=True).refusal("host", ipaddress.ip_address(text)) is not None


def test_a_network_that_is_listed_is_open_whatever_it_is():
    rules = AddressRules.of(allow=["169.254.169.254", "10.1.0.0/16"])
    assert rules.refusal("host", ipaddress.ip_address("169.254.169.254")) is None
    assert rules.refusal("host", ipaddress.ip_address("10.1.2.3")) is None
    assert rules.refusal("host", ipaddress.ip_address("10.2.2.3")) is Kind.PRIVATE


def test_a_host_that_is_listed_may_be_private_and_others_may_not():
    rules = AddressRules.of(allow=["printer.lan", "*.corp.example"])
    private = ipaddress.ip_address("10.0.0.1")
    assert rules.refusal("Printer.lan.", private) is None
    assert rules.refusal("wiki.corp.example", private) is None
    assert rules.refusal("corp.example", private) is Kind.PRIVATE
    assert rules.refusal("evil.example", private) is Kind.PRIVATE
    assert rules.refusal("wiki.corp.example", ipaddress.ip_address("169.254.169.254")) is Kind.METADATA
