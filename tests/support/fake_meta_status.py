"""The queries of status pages, in memory; part of `fake_meta_store`. Nothing is adapted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from service.domain.job import Job, JobState
from service.ports.status import AutoLimit, EngineWork, LimitChange
from service.protocol.ids import ActorId, FragmentId, JobId, Vnode
from service.protocol.plan import VnodePosition
from service.protocol.stage import Engine, Stage
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

    async def engine_work(self, jobs: Collection[JobId]) -> Mapping[JobId, Mapping[Engine, EngineWork]]:
        return {job: {one: self._work(job, one) for one in Engine} for job in jobs}

    def _work(self, job: JobId, engine: Engine) -> EngineWork:
        done = [self.tables.work.get((row.id, engine), (0, 0)) for row in self.tables.of_job(job)]
        return EngineWork(sum(jobs for jobs, _ in done), sum(rows for _, rows in done))

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

    async def lookups(self, jobs: Collection[JobId]) -> Mapping[FragmentId, Sequence[str]]:
        relations = self.tables.relations
        found = {
            row.id: [
                relations[one.relation].relation.name
                for one in row.query.inputs[1:]
                if relations[one.relation].owner is None
            ]
            for job in sorted(jobs)
            for row in self.tables.of_job(job)
            if isinstance(row.query, Stage) and row.id in self.tables.scans
        }
        return {one: names for one, names in found.items() if names}
