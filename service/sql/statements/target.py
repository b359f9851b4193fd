"""The options by which a statement names an external system, with those whose values are secrets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.connectors import check_secrets
from service.domain.errors import Invalid
from service.sql.text.options import Option


@dataclass(frozen=True, slots=True)
class Target:
    """Options by name. `secrets` are those whose values are secrets, with the names of these.

    `positions` are those of the values.
    """

    options: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])
    positions: Mapping[str, int] = field(default_factory=dict[str, int])


def target_of(given: Mapping[str, Option]) -> Target:
    """Return the options of a statement. Raises Invalid if a secret is given as a text, or a text as a secret."""
    secrets = {option.name: option.secret for option in given.values() if option.secret is not None}
    texts = {option.name: option.string() for option in given.values() if option.secret is None}
    positions = {option.name: option.position for option in given.values()}
    try:
        check_secrets(texts, secrets)
    except Invalid as error:
        raise Invalid(error.message, position=positions.get(error.pointer or "")) from None
    return Target(texts, secrets, positions)
