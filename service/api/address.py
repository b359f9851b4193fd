"""Check at the start where the service listens and which origins may call it."""

import ipaddress
from collections.abc import Sequence

from service.api.origins import origin_of
from service.domain.errors import Invalid


def check_bind(host: str, *, secured: bool) -> None:
    """Refuse to listen on an address that others can reach, unless callers need a token. Raises Invalid."""
    if not secured and not _is_loopback(host):
        raise Invalid(
            f"TIDEFILL_HOST={host} can be reached from other machines:"
            " set TIDEFILL_API_TOKEN or TIDEFILL_OIDC_ISSUER first",
            pointer="TIDEFILL_HOST",
        )


def allowed_origins(given: Sequence[str]) -> tuple[str, ...]:
    """Return the origins of TIDEFILL_ALLOWED_ORIGINS in the form that browsers send. Raises Invalid."""
    return tuple(_origin(text) for text in given)


def reachable(host: str) -> str:
    """Return the host at which the service's own worker reaches it. For an unspecified address this is loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return f"[{host}]" if address.version == 6 else host


def _origin(text: str) -> str:
    origin = origin_of(text)
    if origin is None:
        raise Invalid(
            f'TIDEFILL_ALLOWED_ORIGINS: "{text}" is no origin such as https://grafana.example:3000',
            pointer="TIDEFILL_ALLOWED_ORIGINS",
        )
    return origin


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
