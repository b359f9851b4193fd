"""API tokens and the audit trail."""

from datetime import timedelta

import pytest

from service.domain.errors import Conflict
from service.domain.roles import Role
from service.meta_store import audit
from service.ports.audit import Asker, AuditedCall, Outcome, itself
from service.ports.meta_store import Stores
from service.ports.tokens import NewToken, TokenId
from tests.conformance.conftest import ON_POSTGRES
from tests.support.meta_store import NOW

pytestmark = ON_POSTGRES
SHA = b"x" * 32
CI = NewToken("ci", Role.OPERATOR, "TIDEFILL_API_TOKEN", NOW, None)
PAUSING = AuditedCall(NOW, "POST", "/v1/jobs/{job}/pause", "m", request_id="r", trace_id="0" * 32)


def asker(actor: str = "token 7 (ci)", call: AuditedCall = PAUSING) -> Asker:
    return Asker(actor, Role.OPERATOR, call)


async def test_a_token_is_found_by_its_id_and_keeps_when_it_ended(stores: Stores) -> None:
    async with stores.begin() as tx:
        made = await tx.tokens.add(CI, SHA)
    assert (made.name, made.role, made.sha256, made.last_used_at) == ("ci", Role.OPERATOR, SHA, None)
    async with stores.begin() as tx:
        assert await tx.tokens.called([made.id, TokenId(made.id + 1)]) == {made.id: made}
        await tx.tokens.used(made.id, now=NOW)
        revoked = await tx.tokens.revoke(made.id, now=NOW)
        assert revoked is not None
        assert (revoked.last_used_at, revoked.revoked_at) == (NOW, NOW)
        assert await tx.tokens.revoke(made.id, now=NOW + timedelta(1)) == revoked
        assert await tx.tokens.revoke(TokenId(made.id + 1), now=NOW) is None


async def test_a_name_is_free_again_when_its_token_was_revoked(stores: Stores) -> None:
    async with stores.begin() as tx:
        first = await tx.tokens.add(CI, SHA)
    with pytest.raises(Conflict, match="ci"):
        async with stores.begin() as tx:
            await tx.tokens.add(CI, SHA)
    async with stores.begin() as tx:
        await tx.tokens.revoke(first.id, now=NOW)
        second = await tx.tokens.add(CI, SHA)
        assert [one.id for one in await tx.tokens.page(after=0, limit=9)] == [first.id, second.id]
        assert [one.id for one in await tx.tokens.page(after=first.id, limit=9)] == [second.id]
        assert len(await tx.tokens.page(after=0, limit=1)) == 1


async def test_tokens_that_ended_long_ago_are_forgotten(stores: Stores) -> None:
    async with stores.begin() as tx:
        lasting = await tx.tokens.add(CI, SHA)
        expired = NewToken("short", Role.VIEWER, "x", NOW, NOW + timedelta(seconds=1))
        await tx.tokens.add(expired, SHA)
        await tx.tokens.forget_older(NOW + timedelta(seconds=1))
        assert len(await tx.tokens.page(after=0, limit=9)) == 2
        await tx.tokens.forget_older(NOW + timedelta(days=1))
        assert [one.id for one in await tx.tokens.page(after=0, limit=9)] == [lasting.id]


async def test_a_change_and_its_entry_are_committed_together(stores: Stores) -> None:
    async with stores.begin(by=asker()) as tx:
        await tx.parameters.set("row_limit", "7")

    async def fail() -> None:
        async with stores.begin(by=asker("another")) as tx:
            await tx.parameters.set("row_limit", "8")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with stores.begin() as tx:
        (entry,) = await tx.audit.newest(before=None, limit=9, discreet=True)
        assert (await tx.parameters.all())["row_limit"] == "7"
    assert (entry.actor, entry.role, entry.outcome) == ("token 7 (ci)", Role.OPERATOR, Outcome.ACCEPTED)
    assert (entry.at, entry.method, entry.route, entry.target) == (NOW, "POST", "/v1/jobs/{job}/pause", "m")
    assert (entry.statement, entry.request_id, entry.trace_id) == (None, "r", "0" * 32)


async def test_what_the_service_does_itself_has_no_entry(stores: Stores) -> None:
    async with stores.begin(by=itself("recovery")) as tx:
        await tx.parameters.set("row_limit", "7")
    async with stores.begin() as tx:
        assert await tx.audit.newest(before=None, limit=9, discreet=True) == []


async def test_entries_come_newest_first_by_page_actor_and_target(stores: Stores) -> None:
    async with stores.begin() as tx:
        for number in range(4):
            call = AuditedCall(NOW, "POST", "/v1/sql", f"t{number % 2}", f"say \x00 {number}", discreet=number == 3)
            await tx.audit.add(asker(f"a{number}", call), Outcome.REFUSED)
    async with stores.begin() as tx:
        found = await tx.audit.newest(before=None, limit=9, discreet=True)
        assert [entry.actor for entry in found] == ["a3", "a2", "a1", "a0"]
        assert "\x00" not in (found[0].statement or "")
        assert [one.actor for one in await tx.audit.newest(before=None, limit=2, discreet=False)] == ["a2", "a1"]
        assert [one.actor for one in await tx.audit.newest(before=found[1].id, limit=9, discreet=True)] == ["a1", "a0"]
        assert [one.actor for one in await tx.audit.newest(before=None, limit=9, discreet=True, actor="a1")] == ["a1"]
        named = await tx.audit.newest(before=None, limit=9, discreet=False, target="t1")
        assert [one.actor for one in named] == ["a1"]


async def test_old_entries_are_forgotten(stores: Stores) -> None:
    async with stores.begin() as tx:
        for days in (0, 2):
            call = AuditedCall(NOW + timedelta(days), "POST", "/v1/sql")
            await tx.audit.add(asker(f"a{days}", call), Outcome.ACCEPTED)
        await tx.audit.forget_older(NOW + timedelta(1))
        assert [one.actor for one in await tx.audit.newest(before=None, limit=9, discreet=True)] == ["a2"]


async def test_i13_each_actor_keeps_its_newest_entries_alone(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that pauses and resumes all day would fill the meta store."""
    monkeypatch.setattr(audit, "KEPT", 3)
    monkeypatch.setattr(audit, "_TRIM_EVERY", 1)
    async with stores.begin() as tx:
        for number in range(8):
            call = AuditedCall(NOW, "POST", "/v1/sql", str(number))
            await tx.audit.add(asker("busy" if number % 4 else "calm", call), Outcome.ACCEPTED)
        found = await tx.audit.newest(before=None, limit=9, discreet=True)
    assert [(one.actor, one.target) for one in found] == [
        ("busy", "7"),
        ("busy", "6"),
        ("busy", "5"),
        ("calm", "4"),
        ("calm", "0"),
    ]
