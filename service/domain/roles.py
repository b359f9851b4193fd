"""Decide what a caller may do. One function decides for every kind of credential."""

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Role(StrEnum):
    """Viewers read, operators also change data and jobs, admins also change how the service is run.

    Workers make the calls of `/internal/` and no others.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"


PEOPLE: Final = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
"""The roles of users, each with the rights of those before it."""
_RANKS: Final = MappingProxyType({role: rank for rank, role in enumerate(PEOPLE)})


def permits(has: Role, needs: Role) -> bool:
    """Return whether a caller with the role `has` may make a call that needs `needs`."""
    if has in _RANKS and needs in _RANKS:
        return _RANKS[has] >= _RANKS[needs]
    return has is needs
