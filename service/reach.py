"""Resolve a host that a user names, and keep to the addresses that `service.domain.reach` permits."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from service.domain.errors import Invalid
from service.domain.reach import SETTING, HostRules

ADDRESSES_MAX: Final = 8
"""Maximum number of addresses that are tried, of one host or a list of hosts."""


class UnresolvedError(Exception):
    """The host has no address in the name service."""


async def addresses(hosts: Sequence[str], port: int, rules: HostRules) -> tuple[tuple[str, str], ...]:
    """Return every host with each of its permitted addresses.

    Raises Invalid if no host or address is permitted, UnresolvedError if a permitted host has no address.
    """
    found = [(host, address) for host in hosts for address in await _resolved(host, port, rules)]
    permitted = [(host, address) for host, address in found if rules.permits(host, address)]
    if permitted:
        return tuple(permitted[:ADDRESSES_MAX])
    if found or not any(rules.may_resolve(host) for host in hosts):
        raise Invalid(f"{', '.join(hosts)} may not be reached: {SETTING} does not list the host", pointer="hostname")
    raise UnresolvedError


async def _resolved(host: str, port: int, rules: HostRules) -> Sequence[str]:
    if not rules.may_resolve(host):
        return ()
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return list(dict.fromkeys(str(place[0]) for *_, place in found))
