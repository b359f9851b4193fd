"""Run ALTER, CANCEL JOBS, SHOW JOBS, WAIT, FLUSH and RECOVER."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from service.domain.errors import Invalid
from service.domain.parallelism import DEFAULT
from service.domain.roles import Role
from service.operations.commands import limits, mutations
from service.operations.jobs import lifecycle, rescaling
from service.operations.jobs.standing import progress_of
from service.operations.naming import existing
from service.operations.sources import reload
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome, tag
from service.operations.status.listing import listed
from service.ports.records import CatalogEntry
from service.protocol.relation import RelationKind
from service.sql.statements.jobs import (
    AlterFragmentRateLimit,
    AlterParallelism,
    AlterRateLimit,
    CancelJobs,
    Flush,
    Recover,
    ReloadTable,
    ShowJobs,
    Wait,
)

WAIT_LIMIT: Final = timedelta(hours=2)
RECOVERING: Final = "the recovery goes on: rw_catalog.rw_recovery_info shows how"


async def _with_job(call: Call, name: str, kind: RelationKind) -> CatalogEntry:
    entry = (await existing(call.world, name, kind)).entry
    assert entry is not None, kind
    return entry


@handles(AlterRateLimit, needs=Role.OPERATOR)
async def _alter_rate_limit(call: Call, statement: AlterRateLimit) -> Outcome:
    entry = await _with_job(call, statement.name, statement.kind)
    if statement.kind is RelationKind.TABLE and not entry.follows:
        raise Invalid(f'"{statement.name}" is not a CDC table')
    command = await limits.throttle_job(call.world, entry.job, statement.limit, asked_by=call.asked_by)
    await mutations.applied(call.world, command)
    notice = None if statement.limit is None else await limits.without_effect(call.world, entry.job)
    return Outcome(tag("ALTER", statement.kind), notices=() if notice is None else (notice,))


@handles(AlterParallelism, needs=Role.OPERATOR)
async def _alter_parallelism(call: Call, statement: AlterParallelism) -> Outcome:
    entry = await _with_job(call, statement.name, statement.kind)
    if statement.backfill:
        changes = {"backfill_parallelism": statement.parallelism}
    else:
        changes = {"parallelism": statement.parallelism or DEFAULT}
    command = await rescaling.alter(call.world, entry.job, changes, asked_by=call.asked_by)
    done = Outcome(tag("ALTER", statement.kind))
    if statement.deferred:
        return done
    if await rescaling.recovering(call.world):
        return replace(done, notices=("the cluster is under recovery: the change is deferred until it is over",))
    await mutations.applied(call.world, command)
    return done


@handles(ReloadTable, needs=Role.OPERATOR)
async def _reload(call: Call, statement: ReloadTable) -> Outcome:
    entry = await _with_job(call, statement.name, RelationKind.TABLE)
    if not entry.follows:
        raise Invalid(f'"{statement.name}" does not follow an external table')
    command = await reload.reload_table(call.world, entry, asked_by=call.asked_by)
    await mutations.applied(call.world, command)
    return Outcome(tag("ALTER", RelationKind.TABLE))


@handles(AlterFragmentRateLimit, needs=Role.OPERATOR)
async def _alter_fragment(call: Call, statement: AlterFragmentRateLimit) -> Outcome:
    command = await limits.throttle_fragment(call.world, statement.fragment, statement.limit, asked_by=call.asked_by)
    await mutations.applied(call.world, command)
    return Outcome("ALTER_FRAGMENT")


@handles(ShowJobs, needs=Role.VIEWER)
async def _show(call: Call, _: ShowJobs) -> Outcome:
    async with call.world.stores.begin() as tx:
        creating = await listed(tx)
        progress = await progress_of(tx, creating)
    rows = tuple(
        (job.id, job.statement, "BACKGROUND" if job.background else "FOREGROUND", progress[job.id].text)
        for job in creating
    )
    columns = (("Id", "bigint"), ("Statement", "text"), ("Create Type", "text"), ("Progress", "text"))
    return Outcome("SHOW", columns, rows)


@handles(CancelJobs, needs=Role.OPERATOR)
async def _cancel(call: Call, statement: CancelJobs) -> Outcome:
    cancelled = await lifecycle.cancel(call.world, statement.ids, asked_by=call.asked_by)
    return Outcome("CANCEL_COMMAND", (("Id", "bigint"),), tuple((job,) for job in cancelled))


@handles(Wait, needs=Role.VIEWER)
async def _wait(call: Call, statement: Wait) -> Outcome:
    kind, name = statement.kind, statement.name
    only = None if kind is None or name is None else (await _with_job(call, name, kind)).job
    await lifecycle.over(call.world, only, limit=WAIT_LIMIT, gone=call.gone)
    return Outcome("WAIT")


@handles(Flush, needs=Role.OPERATOR)
async def _flush(call: Call, _: Flush) -> Outcome:
    await mutations.flush(call.world, asked_by=call.asked_by)
    return Outcome("FLUSH")


@handles(Recover, needs=Role.ADMIN)
async def _recover(call: Call, _: Recover) -> Outcome:
    ended = await mutations.recover(call.world, asked_by=call.asked_by)
    over = await mutations.recovered(call.world, ended)
    return Outcome("RECOVER", notices=() if over else (RECOVERING,))
