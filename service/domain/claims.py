"""Decide from the claims of a JWT whose signature is good who its bearer is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from service.domain.errors import Invalid
from service.domain.roles import PEOPLE, Role

LEEWAY: Final = timedelta(seconds=30)
"""How far the clocks of the issuer and of this service may differ."""
SUBJECT_MAX: Final = 255
"""The limit of OpenID Connect."""
_INSTANT_MAX: Final = 1e15
"""No token lives for 30 million years. JSON has integers that are larger than any float, and Infinity."""
_LOOPBACK: Final = ("http://127.0.0.1", "http://localhost", "http://[::1]")


@dataclass(frozen=True, slots=True)
class OidcRules:
    """Whose tokens are accepted. `roles` has the role of each value of the claim `role_claim`."""

    issuer: str
    audience: str
    role_claim: str
    roles: Mapping[str, Role]


def oidc_rules(
    issuer: str | None, audience: str | None, role_claim: str, roles: Mapping[str, str] | None
) -> OidcRules | None:
    """Return the rules of the settings, or None without an issuer. Raises Invalid, whose pointer is the variable."""
    if issuer is None:
        if audience is not None or roles is not None:
            raise Invalid("TIDEFILL_OIDC_ISSUER is missing", pointer="TIDEFILL_OIDC_ISSUER")
        return None
    if not is_trusted(issuer):
        raise Invalid("TIDEFILL_OIDC_ISSUER is an https URL", pointer="TIDEFILL_OIDC_ISSUER")
    if not audience:
        raise Invalid("TIDEFILL_OIDC_AUDIENCE is missing: tokens for others would do", pointer="TIDEFILL_OIDC_AUDIENCE")
    known = {role.value: role for role in PEOPLE}
    if not roles or not set(roles.values()) <= set(known):
        example = '{"sre": "operator"}'
        raise Invalid(
            f"TIDEFILL_OIDC_ROLES is a JSON object as {example}, of the roles {', '.join(known)}",
            pointer="TIDEFILL_OIDC_ROLES",
        )
    return OidcRules(issuer, audience, role_claim, {value: known[role] for value, role in roles.items()})


def is_trusted(url: str) -> bool:
    """Return whether keys may come from a URL: nobody can change them on their way."""
    begun = next((start for start in _LOOPBACK if url.startswith(start)), None)
    return url.startswith("https://") or (begun is not None and url[len(begun) :][:1] in {"", ":", "/"})


def bearer(claims: Mapping[str, Any], rules: OidcRules, *, now: datetime) -> tuple[str, Role] | None:
    """Return the subject of a token and its highest role, or None if the token is not for this service at this time."""
    audience, subject = claims.get("aud"), claims.get("sub")
    meant = audience == rules.audience or (isinstance(audience, list) and rules.audience in audience)
    if claims.get("iss") != rules.issuer or not meant or not _current(claims, now):
        return None
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_MAX or not subject.isprintable():
        return None
    found = {rules.roles[value] for value in _values(claims, rules.role_claim) if value in rules.roles}
    return (subject, max(found, key=PEOPLE.index)) if found else None


def _current(claims: Mapping[str, Any], now: datetime) -> bool:
    """Return whether a token is valid by its times. It has to expire."""
    ends, begins = claims.get("exp"), claims.get("nbf", 0)
    if not _is_instant(ends) or not _is_instant(begins):
        return False
    leeway, at = LEEWAY.total_seconds(), now.timestamp()
    return cast("float", begins) - leeway <= at < cast("float", ends) + leeway


def _is_instant(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _INSTANT_MAX


def _values(claims: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return the texts of a claim. If no claim has the name, its dots lead into objects (`realm_access.roles`)."""
    found: object = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = cast("dict[str, object]", found).get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        return [found]
    return [one for one in cast("list[object]", found) if isinstance(one, str)] if isinstance(found, list) else []
