"""API tokens and the audit trail of the meta store in memory; part of `fake_meta_store`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from service.domain.errors import Conflict
from service.ports.audit import Asker, AuditEntry, Outcome
from service.ports.tokens import ApiToken, NewToken, TokenId
from tests.support.fake_meta_tables import Tables, printable


@dataclass(frozen=True, slots=True)
class FakeTokens:
    tables: Tables

    async def add(self, new: NewToken, sha256: bytes) -> ApiToken:
        if any(one.name == new.name and one.revoked_at is None for one in self.tables.tokens.values()):
            raise Conflict(f'there is a token "{new.name}": revoke it first, or take another name')
        id_ = TokenId(next(self.tables.ids))
        token = ApiToken(
            id_, new.name, new.role, new.created_by, new.created_at, new.expires_at, None, None, sha256=sha256
        )
        self.tables.tokens.put(id_, token)
        return token

    async def called(self, wanted: Collection[TokenId]) -> Mapping[TokenId, ApiToken]:
        return {one: self.tables.tokens[one] for one in wanted if one in self.tables.tokens}

    async def page(self, *, after: int, limit: int) -> Sequence[ApiToken]:
        return [token for one, token in sorted(self.tables.tokens.items()) if one > after][:limit]

    async def revoke(self, token: TokenId, *, now: datetime) -> ApiToken | None:
        found = self.tables.tokens.get(token)
        if found is None:
            return None
        revoked = replace(found, revoked_at=found.revoked_at or now)
        self.tables.tokens.put(token, revoked)
        return revoked

    async def used(self, token: TokenId, *, now: datetime) -> None:
        if (found := self.tables.tokens.get(token)) is not None:
            self.tables.tokens.put(token, replace(found, last_used_at=now))

    async def forget_older(self, than: datetime) -> None:
        for one, token in list(self.tables.tokens.items()):
            ended = [at for at in (token.revoked_at, token.expires_at) if at is not None]
            if any(at < than for at in ended):
                self.tables.tokens.take(one)


@dataclass(frozen=True, slots=True)
class FakeAudit:
    tables: Tables

    async def add(self, asker: Asker, outcome: Outcome) -> None:
        record(self.tables, asker, outcome)

    async def newest(
        self, *, before: int | None, limit: int, discreet: bool, actor: str | None = None, target: str | None = None
    ) -> Sequence[AuditEntry]:
        found = [
            entry
            for id_, (entry, hidden) in sorted(self.tables.audit.items(), reverse=True)
            if (before is None or id_ < before)
            and (discreet or not hidden)
            and (actor is None or entry.actor == actor)
            and (target is None or entry.target == target)
        ]
        return found[:limit]

    async def forget_older(self, than: datetime) -> None:
        for one, (entry, _) in list(self.tables.audit.items()):
            if entry.at < than:
                self.tables.audit.take(one)


def record(tables: Tables, asker: Asker, outcome: Outcome) -> None:
    """Add an entry, as the end of a transaction does."""
    call = asker.call
    assert call is not None, asker
    id_ = next(tables.ids)
    entry = AuditEntry(
        id_,
        call.at,
        printable(asker.actor),
        asker.role,
        call.method,
        call.route,
        None if call.statement is None else printable(call.statement),
        None if call.target is None else printable(call.target),
        outcome,
        call.request_id,
        call.trace_id,
    )
    tables.audit.put(id_, (entry, call.discreet))
