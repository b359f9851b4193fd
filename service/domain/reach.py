"""Decide which addresses the service may connect to for a user: sources and health probes. Pure.

`service.reach` resolves names and applies these rules. The rules judge the address to which a name resolved, not the
name alone. The service then connects to exactly that address.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from service.domain.errors import Invalid

SETTING: Final = "TIDEFILL_SOURCE_HOSTS"
_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]{0,251}[a-z0-9_])?")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_FORBIDDEN: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "168.63.129.16/32",  # the platform of Azure
        "169.254.0.0/16",  # link-local, and the metadata of most clouds
        "192.0.0.0/24",  # protocol assignments, and the metadata of Oracle Cloud
        "224.0.0.0/3",  # multicast, reserved and broadcast
        "::/128",
        "fd00:ec2::/32",  # metadata of AWS
        "fe80::/10",
        "ff00::/8",
    )
)

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class HostRules:
    """The hosts that the service may connect to.

    Without a list (`closed` is False), all addresses are permitted except link-local, metadata and multicast ones. With
    a list, only its hosts are permitted. A forbidden address is then permitted only if the list contains it as an
    address or in a network.
    """

    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    closed: bool = False
    """Whether the operator gave a list."""
    told: bool = False
    """Whether failures are reported in full for every permitted host, because all callers are on this machine."""

    def may_resolve(self, host: str) -> bool:
        """Whether the service may query the name server for a host, because some address of it might be permitted."""
        return not self.closed or bool(self.networks) or self.names_host(host)

    def names_host(self, host: str) -> bool:
        """Whether the list contains this name."""
        name = host.lower().removesuffix(".")
        return name in self.names or name.endswith(self.suffixes)

    def lists(self, host: str, address: str) -> bool:
        """Whether the operator listed the host, by name or by address."""
        return self._in_networks(address) or (self.names_host(host) and not _forbidden(address))

    def tells(self, host: str, address: str) -> bool:
        """Whether failures of the host are reported in full."""
        return self.told or self.lists(host, address)

    def permits(self, host: str, address: str) -> bool:
        """Whether the service may connect to `host` at `address`, to which it resolved."""
        return self.lists(host, address) or (not self.closed and not _forbidden(address))

    def _in_networks(self, address: str) -> bool:
        places = _meant(address)
        # An address is in no network of the other IP version.
        return bool(places) and all(any(place in ip_network(network) for network in self.networks) for place in places)


ANY: Final = HostRules()


def parse_host_rules(entries: Sequence[str] | None) -> HostRules:
    """Return the rules for a list of names (`db.example`, `*.db.example`), addresses and networks. Raises Invalid."""
    if entries is None:
        return ANY
    names: set[str] = set()
    suffixes: list[str] = []
    networks: list[str] = []
    for entry in entries:
        text = entry.strip().lower().removesuffix(".")
        try:
            networks.append(str(ip_network(text.strip("[]"))))
        except ValueError:
            if not _NAME.fullmatch(text):
                message = f'{SETTING}: "{entry}" is no host name, address or network such as 10.0.0.0/8'
                raise Invalid(message, pointer=SETTING) from None
            if text.startswith("*"):
                suffixes.append(text[1:])
            else:
                names.add(text)
    return HostRules(frozenset(names), tuple(suffixes), tuple(networks), closed=True)


def _forbidden(address: str) -> bool:
    places = _meant(address)
    return not places or any(place in network for place in places for network in _FORBIDDEN)


def _meant(address: str) -> tuple[Address, ...]:
    """Return the address and an IPv4 address that it embeds. A mapped address gives the IPv4 one alone.

    The result is empty if the text is not an address.
    """
    try:
        place = ip_address(address.partition("%")[0])
    except ValueError:
        return ()
    if isinstance(place, IPv4Address):
        return (place,)
    if place.ipv4_mapped is not None:
        return (place.ipv4_mapped,)
    if place.sixtofour is not None:
        return (place, place.sixtofour)
    if place in _NAT64:
        return (place, IPv4Address(int(place) & 0xFFFFFFFF))
    return (place,)
