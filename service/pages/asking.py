"""What a page is asked for, and by whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from service.api.routes.probes import Checks
from service.domain.errors import Invalid
from service.domain.roles import Role, permits
from service.operations.world import World
from service.pages.running import Verifications
from service.ports.audit import Asker
from service.protocol.ids import BIGINT_MAX


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for a page. `given` are the parameters of its path and of its query."""

    world: World
    caller: Asker
    given: Mapping[str, str]
    checks: Checks
    verifications: Verifications

    @property
    def now(self) -> datetime:
        """The present instant."""
        return self.world.clock.now()

    @property
    def admin(self) -> bool:
        """Whether the caller sees what only admins see."""
        return permits(self.caller.role, Role.ADMIN)

    def text(self, name: str) -> str:
        """Return a parameter, empty if it is not given."""
        return self.given.get(name, "")

    def number(self, name: str) -> int | None:
        """Return a parameter as a number, None if it is not given. Raises Invalid."""
        text = self.text(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > len(str(BIGINT_MAX)) or int(text) > BIGINT_MAX:
            raise Invalid(f'{name}: "{text[:30]}" is no number', pointer=name)
        return int(text)
