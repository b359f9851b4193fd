"""Decide from a request's head whether a web page could have sent it. Pure; `service.api.middleware` applies it.

Two attacks are refused. *DNS rebinding*: a page's own name resolves to this machine, so the browser treats the service
as part of that page; the `Host` header still carries the name. *Cross-site requests*: a page of another site sends a
call that needs no preflight; browsers then send `Origin` or `Sec-Fetch-Site`.
"""

import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]@/\\?#,]+)(?::(?P<port>[0-9]{0,5}))?", re.ASCII)
_PORTS: Final = {"http": "80", "https": "443"}
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE: Final = frozenset({"same-origin", "none"})
"""`none`: the user typed the address or used a bookmark."""


class Refusal(Enum):
    """The reason for refusing a request."""

    TARGET = "target"
    """The request target is not a path."""
    HOST = "host"
    """`Host` is not a name of this machine."""
    ORIGIN = "origin"
    """A page of another origin sent the call."""


@dataclass(frozen=True, slots=True)
class Head:
    """The parts of a request that decide: every value of each header, in order of arrival."""

    method: str
    target: str
    host: Sequence[str] = ()
    origin: Sequence[str] = ()
    site: Sequence[str] = ()
    """`Sec-Fetch-Site`."""
    mode: Sequence[str] = ()
    """`Sec-Fetch-Mode`."""


def judge(head: Head, *, loopback_only: bool, allowed: Collection[str] = ()) -> Refusal | None:
    """Return the reason for refusing a request, or None.

    `loopback_only`: the call needs no token, so `Host` must name this machine. Pages of the origins in `allowed`, in
    the form of `origin_of`, may call the service.
    """
    if not (head.target.startswith("/") or (head.method == "OPTIONS" and head.target == "*")):
        return Refusal.TARGET
    if len(head.host) > 1 or (loopback_only and not (head.host and is_loopback(head.host[0]))):
        return Refusal.HOST
    return Refusal.ORIGIN if _foreign(head, allowed) else None


def is_loopback(authority: str) -> bool:
    """Whether a `Host` header names loopback: 127.0.0.0/8, [::1] or localhost, with any port."""
    parsed = _AUTHORITY.fullmatch(authority)
    if parsed is None:
        return False
    host = parsed["host"].lower()
    if host.removesuffix(".") == "localhost":
        return True
    try:
        # Four decimal numbers only: browsers convert every other form of an address to this one before they send it.
        return ipaddress.ip_address(host.strip("[]")).is_loopback and (":" in host) == host.startswith("[")
    except ValueError:
        return False


def origin_of(text: str) -> str | None:
    """Return an `http` or `https` origin in the form that browsers send, or None if `text` is not an origin."""
    scheme, _, authority = text.partition("://")
    scheme, parsed = scheme.lower(), _AUTHORITY.fullmatch(authority)
    if scheme not in _PORTS or parsed is None:
        return None
    port = "" if parsed["port"] in (None, "", _PORTS[scheme]) else f":{parsed['port']}"
    return f"{scheme}://{parsed['host'].lower().removesuffix('.')}{port}"


def _foreign(head: Head, allowed: Collection[str]) -> bool:
    if head.origin:
        origin = origin_of(head.origin[0]) if len(head.origin) == 1 else None
        if origin in allowed:
            return False
        if origin is None or not head.host:
            return True
        # A proxy may have ended TLS, so the service's own scheme is taken to be the origin's.
        if origin != origin_of(f"{origin.partition(':')[0]}://{head.host[0]}"):
            return True
    if all(site.lower() in _OWN_SITE for site in head.site):
        return False
    # A link on another site may open a page of this service; a script there can neither read nor change anything.
    navigates = [mode.lower() for mode in head.mode] == ["navigate"]
    return not (navigates and head.method in _READING)
