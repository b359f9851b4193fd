"""The queries of status pages, in memory; part of `fake_meta_store`. Nothing is adapted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from service.domain.job import Job, JobState
from service.ports.status import AutoLimit, LimitChange, StagedStatement
from service.protocol.ids import ActorId, FragmentId, JobId, Vnode
from service.protocol.plan import VnodePosition
from tests.support.fake_meta_jobs import FakeJobs
from tests.support.fake_meta_tables import Tables


@dataclass(frozen=True, slots=True)
class FakeStatus:
    tables: Tables

    async def jobs(self, states: Collection[JobState] | None, *, after: int, limit: int) -> Sequence[Job]:
        return [job for job in await FakeJobs(self.tables).where(states) if job.id > after][:limit]

    async def adaptive_limits(self, jobs: Collection[JobId]) -> Mapping[FragmentId, AutoLimit]:
        del jobs
        return {}

    async def limit_changes(self, job: JobId, *, limit: int, before: int | None = None) -> Sequence[LimitChange]:
        del job, limit, before
        return ()

    async def backfill_order(self, job: JobId) -> Sequence[tuple[str, str]]:
        names = {one: row.relation.name for one, row in self.tables.relations.items()}
        return [(names[before], names[after]) for before, after in self.tables.jobs[job].order]

    async def positions(self, fragment: FragmentId) -> Mapping[Vnode, VnodePosition]:
        return self.tables.positions.get(fragment, {})

    async def unfinished_actors(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ActorId]]:
        left = {
            job: [
                actor.id
                for row in self.tables.of_job(job)
                for actor in self.tables.of_fragment(row.id)
                if not actor.finished
            ]
            for job in jobs
        }
        return {job: sorted(actors) for job, actors in left.items()}

    async def staged_statements(self) -> Sequence[StagedStatement]:
        return [
            StagedStatement(one, row.stored.statement.relation.name, row.stored.applied_rows, row.stored.staged_rows)
            for one, row in sorted(self.tables.statements.items())
            if row.stored.staged_rows is not None
        ]
